"""Azure Data Lake Storage Gen2, and Azure's blob storage: by obstore, through the blob endpoint, which both have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from mirror_pump.errors import LakeError
from mirror_pump.storage_kinds.kind import CLIENT, RETRIES, StorageKind, header_fault, plain_key

_LOCATION = re.compile(
    r"[a-z]+://(?P<container>[^@/]+)@(?P<account>[^./]+)\.(?:dfs|blob)\.(?P<suffix>[^/]+)/?(?P<key>.*)"
)
_ENDPOINT = "adls.endpoint"
"""URL of an account elsewhere, such as http://127.0.0.1:10000/devstoreaccount1. Ours."""
_ACCOUNT_KEY, _SAS, _TOKEN = "adls.account-key", "adls.sas-token", "adls.token"
_CREDENTIALS = {_ACCOUNT_KEY: "access_key", _SAS: "sas_token", _TOKEN: "token"}
"""obstore's names of credentials."""
_CLOUDS = ("core.windows.net", "core.usgovcloudapi.net", "core.chinacloudapi.cn", "fabric.microsoft.com")
"""Microsoft's domains: the owner of an account does not get to read the credentials of requests."""


class AzureDataLake(StorageKind):
    """A container of a storage account."""

    scheme = "abfss"
    aliases = ("abfs", "wasbs", "wasb")
    form = "abfss://container@account.dfs.core.windows.net/prefix"
    prefixes = ("adls.",)
    short_names: ClassVar[Mapping[str, str]] = {
        "secret_key": _ACCOUNT_KEY,
        "session_token": _SAS,
        "token": _TOKEN,
        "endpoint": _ENDPOINT,
    }
    # Not the key of the account: it opens all of its containers.
    vended = (_SAS, _TOKEN)
    java_io = "org.apache.iceberg.azure.adlsv2.ADLSFileIO"
    # Azure's SDK alone; Iceberg's own classes are in its runtime for Spark.
    java_bundle = "org.apache.iceberg:iceberg-azure-bundle:1.10.0"

    def split(self, location: str) -> tuple[str, str]:
        match = self._match(location)
        # Azure takes a backslash for a slash, and dots off the end of a name.
        return match["container"], plain_key(match["key"], refused="\\", last=".")

    def normalised(self, location: str) -> str | None:
        match = _LOCATION.fullmatch(location)
        if match is None:
            return None
        # Without a prefix, too: a container is as good as a bucket.
        root = f"{self.scheme}://{match['container']}@{match['account']}.dfs.{match['suffix']}"
        key = match["key"].strip("/")
        return f"{root}/{key}" if key else root

    def file_system(self, location: str, properties: Mapping[str, str]) -> tuple[Any, str]:
        from mirror_pump.storage_kinds.object_files import object_files

        return object_files(self.object_store(location, properties)), self.split(location)[1]

    def opened(self, location: str, properties: Mapping[str, str]) -> Any:
        match = self._match(location)
        fitting = tuple(sorted(self.of_kind(properties).items()))
        return _store(match["container"], match["account"], match["suffix"], fitting)

    def fault_of(self, properties: Mapping[str, str]) -> str | None:
        return header_fault(properties, tuple(_CREDENTIALS))

    def properties_in(self, root: str, location: str, properties: Mapping[str, str]) -> Mapping[str, str]:
        match, account = self._match(location), _LOCATION.fullmatch(root)
        if account is not None and match.group("account", "suffix") == account.group("account", "suffix"):
            return properties
        if match["suffix"] not in _CLOUDS:
            # That host would get a token of the machine's.
            raise LakeError(
                f"{location} is in another account than {root}, and at a host that is not known to be Azure's",
                "if it is to be trusted, make a storage profile with a warehouse there",
            )
        return {}

    def java_properties(self, location: str, properties: Mapping[str, str]) -> dict[str, str]:
        fitting = self.of_kind(properties)
        match = self._match(location)
        host = f"{match['account']}.dfs.{match['suffix']}"
        java = {name: value for name, value in fitting.items() if name not in self.short_names.values()}
        if _ENDPOINT in fitting:
            # So Iceberg calls the endpoint.
            java[f"adls.connection-string.{host}"] = fitting[_ENDPOINT]
        if _ACCOUNT_KEY in fitting:
            java |= {
                "adls.auth.shared-key.account.name": match["account"],
                "adls.auth.shared-key.account.key": fitting[_ACCOUNT_KEY],
            }
        if _TOKEN in fitting:
            java[_TOKEN] = fitting[_TOKEN]
        if _SAS in fitting:
            java[f"adls.sas-token.{host}"] = fitting[_SAS]
        return java

    def has_credentials(self, properties: Mapping[str, str]) -> bool:
        return any(name in properties for name in (*_CREDENTIALS, "adls.auth.shared-key.account.key"))

    def hints(self, location: str, properties: Mapping[str, str]) -> dict[str, str]:
        account = {"adls.account-name": self._match(location)["account"]}
        return account | super().hints(location, properties)

    def pyiceberg_properties(self, location: str, properties: Mapping[str, str]) -> dict[str, str]:
        # By Arrow, pyiceberg 0.12 takes container@account for the container's name.
        account = self._match(location)["account"]
        return {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO", "adls.account-name": account, **properties}

    def trino_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        return {"fs.native-azure.enabled": "true"}

    def duckdb_snippet(self, location: str, properties: Mapping[str, str]) -> str:
        account = self._match(location)["account"]
        return (
            "INSTALL azure; LOAD azure;"
            f" CREATE SECRET (TYPE azure, PROVIDER credential_chain, ACCOUNT_NAME '{account}')"
        )

    def _match(self, location: str) -> re.Match[str]:
        match = _LOCATION.fullmatch(location)
        if match is None:
            raise LakeError(f"{location!r} names no container of an account", f"give {self.form}")
        return match


@lru_cache(maxsize=16)
def _store(container: str, account: str, suffix: str, properties: tuple[tuple[str, str], ...]) -> Any:
    from obstore.store import AzureStore

    given = dict(properties)
    credentials = {_CREDENTIALS[name]: value for name, value in given.items() if name in _CREDENTIALS}
    options: dict[str, Any] = {}
    if credentials:
        # Before all that the environment has.
        options["credential_provider"] = lambda: {**credentials, "expires_at": None}
    endpoint = given.get(_ENDPOINT, f"https://{account}.blob.{suffix}")
    return AzureStore(
        container, account_name=account, endpoint=endpoint, **options, client_options=CLIENT, retry_config=RETRIES
    )
