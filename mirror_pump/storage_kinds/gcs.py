"""Google Cloud Storage, by obstore."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

from mirror_pump.storage_kinds.kind import CLIENT, RETRIES, StorageKind, bucket_and_key, header_fault, plain_key

_TOKEN = "gcs.oauth2.token"  # noqa: S105 - the name of a property
_KEY = "gcs.service-account-key"
"""The JSON document of a service account's key. Ours: pyiceberg and Iceberg's Java library have no name for it."""
_HOST = "gcs.service.host"
_PATHS = frozenset({"GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"})
"""Variables by which obstore finds the file of a key."""
_PEM = re.compile(r"\s*-----BEGIN ((?:RSA )?PRIVATE KEY)-----\s*\n[A-Za-z0-9+/=\s]+\n-----END \1-----\s*")


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
    environment = (*sorted(_PATHS), "GOOGLE_SERVICE_ACCOUNT_KEY")

    def split(self, location: str) -> tuple[str, str]:
        bucket, key = bucket_and_key(location)
        return bucket, plain_key(key)

    def file_system(self, location: str, properties: Mapping[str, str]) -> tuple[Any, str]:
        from mirror_pump.storage_kinds.object_files import object_files

        return object_files(self.object_store(location, properties)), self.split(location)[1]

    def opened(self, location: str, properties: Mapping[str, str]) -> Any:
        return _store(self.split(location)[0], tuple(sorted(self.of_kind(properties).items())))

    def fault_of(self, properties: Mapping[str, str]) -> str | None:
        if _KEY in properties:
            try:
                private_key = json.loads(properties[_KEY])["private_key"]
            except (ValueError, RecursionError, TypeError, KeyError):
                return f"{_KEY} is no JSON document with a private_key"
            if not isinstance(private_key, str) or not _PEM.fullmatch(private_key):
                return f"the private_key in {_KEY} is no PEM text of several lines"
        return header_fault(properties, self.vended)

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
    elif _KEY in given and not _PATHS.isdisjoint(os.environ):
        # The environment names a file, and only another file goes before that.
        with _in_memory(given[_KEY]) as path:
            return GCSStore(bucket, service_account=path, **options)
    elif _KEY in given:
        options["service_account_key"] = given[_KEY]
    return GCSStore(bucket, **options)


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Path of a file with this text, which no directory has, and no other user's process can open."""
    number = os.memfd_create("mirror-pump")
    try:
        os.write(number, text.encode())
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
