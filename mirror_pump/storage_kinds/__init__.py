"""Kinds of object stores: how a location is split and opened, and what other programs are told to read it. A kind is
an entry of KINDS; nothing else in the program knows them by their names."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_pump.storage_kinds.adls import AzureDataLake
from mirror_pump.storage_kinds.gcs import GoogleCloudStorage
from mirror_pump.storage_kinds.kind import StorageKind
from mirror_pump.storage_kinds.s3 import SimpleStorageService

__all__ = ["KINDS", "S3", "StorageKind", "kind_of", "one_spelling", "properties_in"]

S3 = SimpleStorageService()
KINDS: tuple[StorageKind, ...] = (S3, GoogleCloudStorage(), AzureDataLake())
_BY_SCHEME = {scheme: kind for kind in KINDS for scheme in (kind.scheme, *kind.aliases)}


def kind_of(location: str) -> StorageKind | None:
    """The kind of store that a URI is in; None for local files, and for what no kind knows."""
    scheme, separator, _ = location.partition("://")
    return _BY_SCHEME.get(scheme) if separator else None


def one_spelling(location: str) -> str:
    """The location with its kind's own scheme: `s3a://` and `s3://` name one file."""
    kind = kind_of(location)
    return location if kind is None else f"{kind.scheme}://{location.partition('://')[2]}"


def properties_in(root: str, location: str, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Those of the properties of `root` with which another location may be reached. Raises LakeError."""
    kind = kind_of(location)
    return properties if kind is None else kind.properties_in(root, location, properties)
