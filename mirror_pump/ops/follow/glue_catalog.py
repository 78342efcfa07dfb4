"""The Data Catalog of AWS Glue as a follower's catalog. It needs boto3, which the extra `glue` brings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import boto3
import botocore.exceptions
from botocore.config import Config
from pyiceberg.catalog import PropertiesUpdateSummary
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.follow.answer_limits import AnswerLimits
from mirror_pump.ops.follow.metastore_tables import LakeMetadata, MetastoreTables

_KINDS = ("glue", "client", "s3")
_MOMENTARY = re.compile(r"Throttl|Expired|InternalService|OperationTimeout|ServiceUnavailable|RequestLimit")
"""In the codes of errors that may be over in a moment."""
_REFUSED = re.compile(r"AccessDenied|UnrecognizedClient|InvalidClientTokenId|Signature|MissingAuthentication|OptIn")
"""In the codes of errors that credentials have."""


class FollowingGlue(MetastoreTables, GlueCatalog):
    """pyiceberg's client, within limits. Glue moves a table on the condition that it still has its version."""

    momentary = (botocore.exceptions.ConnectionError, botocore.exceptions.HTTPClientError)
    # Those that say nothing have been raised as others.
    refusals = (*MetastoreTables.refusals, botocore.exceptions.ClientError)

    def __init__(self, name: str, properties: Mapping[str, str], storage: StorageOptions, limits: AnswerLimits) -> None:
        self.files = LakeMetadata(storage)
        super().__init__(name, _client(properties, limits), **properties)

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Keeps what else is set, such as default permissions: pyiceberg puts back a part."""
        name = self.identifier_to_database(namespace)
        stored = self.glue.get_database(Name=name)["Database"]
        summary, parameters = self._get_updated_props_and_update_summary(
            stored.get("Parameters", {}), removals, updates
        )
        fields = self.glue.meta.service_model.shape_for("DatabaseInput").members
        others = {field: stored[field] for field in fields if field in stored}
        self.glue.update_database(Name=name, DatabaseInput={**others, "Parameters": parameters})
        return summary

    def close(self) -> None:
        self.glue.close()


def _client(properties: Mapping[str, str], limits: AnswerLimits) -> Any:
    """A client with these credentials, or else with those of the environment."""

    def value(name: str) -> str | None:
        # Credentials may have the short names, which are those of S3.
        return next((properties[f"{kind}.{name}"] for kind in _KINDS if f"{kind}.{name}" in properties), None)

    session = boto3.Session(
        profile_name=value("profile-name"),
        region_name=value("region"),
        aws_access_key_id=value("access-key-id"),
        aws_secret_access_key=value("secret-access-key"),
        aws_session_token=value("session-token"),
    )
    # A request is sent once: after a second one, an answer would not say whether the first has moved the table.
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=limits.patience, read_timeout=limits.patience)
    client = session.client("glue", endpoint_url=properties.get("glue.endpoint"), config=config)
    account = properties.get("glue.id")
    if account is not None:
        client.meta.events.register(
            "provide-client-params.glue", lambda params, **_: params.setdefault("CatalogId", account)
        )
    client.meta.events.register("after-call.glue", _raise_refusal)
    pools = client._endpoint.http_session._pool_classes_by_scheme
    for scheme, pool in pools.items():
        pools[scheme] = limits.watched(type(pool.__name__, (pool,), {}))
    return client


def _raise_refusal(parsed: Mapping[str, Any], http_response: Any, **_: object) -> None:
    """Raises those errors that the client of pyiceberg does not tell apart."""
    error = parsed.get("Error", {})
    code = str(error.get("Code", ""))
    text = f"{code}: {error.get('Message', '')}"
    if _MOMENTARY.search(code) or http_response.status_code >= 500:
        raise ServiceUnavailableError(text)
    if _REFUSED.search(code):
        raise ForbiddenError(text)
