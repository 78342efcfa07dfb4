"""Google Cloud Storage, by obstore."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from mirror_pump.storage_kinds.kind import CLIENT, RETRIES, StorageKind, bucket_and_key, client_library, plain_key

_TOKEN = "gcs.oauth2.token"  # noqa: S105 - the name of a property
_KEY = "gcs.service-account-key"
"""The JSON document of a service account's key. Ours: pyiceberg and Iceberg's Java library have no name for it."""
_HOST = "gcs.service.host"


class GoogleCloudStorage(StorageKind):
    """Google Cloud Storage."""

    scheme = "gs"
    form = "gs://bucket/prefix"
    prefixes = ("gcs.",)
    short_names: ClassVar[Mapping[str, str]] = {"session_token": _TOKEN, "service_account_key": _KEY, "endpoint": _HOST}
    vended = (_TOKEN, "gcs.oauth2.token-expires-at")
    java_io = "org.apache.iceberg.gcp.gcs.GCSFileIO"
    # Google's SDK alone; Iceberg's own classes are in its runtime for Spark.
    java_bundle = "org.apache.iceberg:iceberg-gcp-bundle:1.10.0"

    def split(self, location: str) -> tuple[str, str]:
        bucket, key = bucket_and_key(location)
        return bucket, plain_key(key)

    def file_system(self, location: str, properties: Mapping[str, str]) -> tuple[Any, str]:
        from mirror_pump.storage_kinds.object_files import object_files

        return object_files(self.object_store(location, properties)), self.split(location)[1]

    def object_store(self, location: str, properties: Mapping[str, str]) -> Any:
        client_library()
        return _store(self.split(location)[0], tuple(sorted(self.of_kind(properties).items())))

    def named(self, given: Mapping[str, Any]) -> dict[str, Any]:
        # The file that Google's tools write is as good as one that names it.
        return {_KEY: json.dumps(given)} if given.get("type") == "service_account" else super().named(given)

    def java_properties(self, location: str, properties: Mapping[str, str]) -> dict[str, str]:
        fitting = self.of_kind(properties)
        fitting.pop(_KEY, None)
        return fitting

    def trino_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        return {"fs.native-gcs.enabled": "true"}

    def duckdb_snippet(self, location: str, properties: Mapping[str, str]) -> str:
        return "CREATE SECRET (TYPE gcs, KEY_ID '...', SECRET '...')"


@lru_cache(maxsize=16)
def _store(bucket: str, properties: tuple[tuple[str, str], ...]) -> Any:
    from obstore.store import GCSStore

    given = dict(properties)
    options: dict[str, Any] = {"client_options": CLIENT, "retry_config": RETRIES}
    if _HOST in given:
        options["base_url"] = given[_HOST]
    if _TOKEN in given:
        # Before all that the environment has.
        options["credential_provider"] = lambda: {"token": given[_TOKEN], "expires_at": None}
    elif _KEY in given:
        options["service_account_key"] = given[_KEY]
    return GCSStore(bucket, **options)
