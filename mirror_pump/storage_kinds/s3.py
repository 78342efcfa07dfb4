"""S3, and stores that speak its protocol: by Arrow's own file system, and by obstore for conditional PUTs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from mirror_pump.database.quoting import literal
from mirror_pump.storage_kinds.kind import CLIENT, DuckDbSecret, StorageKind, bucket_and_key


class SimpleStorageService(StorageKind):
    """Amazon's, and Ceph, MinIO, R2, SeaweedFS and others by their endpoint."""

    scheme = "s3"
    aliases = ("s3a", "s3n")
    form = "s3://bucket/prefix"
    prefixes = ("s3.", "client.")
    short_names: ClassVar[Mapping[str, str]] = {
        "access_key": "s3.access-key-id",
        "secret_key": "s3.secret-access-key",
        "session_token": "s3.session-token",
        "endpoint": "s3.endpoint",
        "region": "s3.region",
    }
    vended = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
    java_io = "org.apache.iceberg.aws.s3.S3FileIO"
    java_bundle = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
    trino_remark = """
# It takes keys of S3 from the catalog only with a session token. Otherwise it needs its own, by $AWS_ACCESS_KEY_ID and
# $AWS_SECRET_ACCESS_KEY or a role of the machine's."""

    def split(self, location: str) -> tuple[str, str]:
        return bucket_and_key(location)

    def file_system(self, location: str, properties: Mapping[str, str]) -> tuple[Any, str]:
        bucket, key = self.split(location)
        return _file_system(bucket, tuple(sorted(properties.items()))), f"{bucket}/{key}"

    def opened(self, location: str, properties: Mapping[str, str]) -> Any:
        return _store(self.split(location)[0], tuple(sorted(properties.items())))

    def java_properties(self, location: str, properties: Mapping[str, str]) -> dict[str, str]:
        fitting = self.of_kind(properties)
        java = {name: value for name, value in fitting.items() if name != "s3.region"}
        if "s3.endpoint" in fitting:
            # Stores other than AWS have no host of each bucket's name.
            java["s3.path-style-access"] = "true"
        if "s3.region" in fitting:
            java["client.region"] = fitting["s3.region"]
        return java

    def trino_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        trino = {"fs.native-s3.enabled": "true"}
        if "s3.endpoint" in properties:
            trino |= {"s3.endpoint": properties["s3.endpoint"], "s3.path-style-access": "true"}
        if "s3.region" in properties:
            trino["s3.region"] = properties["s3.region"]
        return trino

    def duckdb_secret(self, properties: Mapping[str, str]) -> DuckDbSecret:
        options = ["TYPE s3"]
        options += [f"{name} {literal(properties[key])}" for key, name in _DUCKDB.items() if key in properties]
        if "s3.endpoint" in properties:
            scheme, _, host = properties["s3.endpoint"].rpartition("://")
            use_ssl = "false" if scheme == "http" else "true"
            options += [f"ENDPOINT {literal(host)}", "URL_STYLE 'path'", f"USE_SSL {use_ssl}"]
        if "s3.access-key-id" in properties:
            return DuckDbSecret(("httpfs",), tuple(options))
        return DuckDbSecret(("httpfs", "aws"), (*options, "PROVIDER credential_chain"))

    def duckdb_snippet(self, location: str, properties: Mapping[str, str]) -> str:
        return f"INSTALL aws; LOAD aws; CREATE SECRET ({', '.join(self.duckdb_secret(properties).options)})"


@lru_cache(maxsize=16)
def _file_system(bucket: str, properties: tuple[tuple[str, str], ...]) -> Any:
    # Imported here, so that a task that writes local files does not spend half a second importing pyiceberg.
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO(dict(properties)).fs_by_scheme("s3", bucket)


_DUCKDB = {
    "s3.access-key-id": "KEY_ID",
    "s3.secret-access-key": "SECRET",
    "s3.session-token": "SESSION_TOKEN",
    "s3.region": "REGION",
}
"""DuckDB's names of properties."""
_OPTIONS = {
    "s3.endpoint": "endpoint",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
}
"""obstore's names of properties. What is not given, both libraries look for where AWS's tools do."""


@lru_cache(maxsize=16)
def _store(bucket: str, properties: tuple[tuple[str, str], ...]) -> Any:
    from obstore.store import S3Store

    given = dict(properties)
    options: dict[str, Any] = {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS}
    options["virtual_hosted_style_request"] = given.get("s3.force-virtual-addressing", "false").lower() == "true"
    return S3Store(bucket, **options, client_options=CLIENT)
