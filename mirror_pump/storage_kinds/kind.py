"""What a kind of object store is: all that the rest of the program asks about it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mirror_pump.errors import CredentialsError, LakeError

CLIENT: Any = {"timeout": "30s", "connect_timeout": "5s", "allow_http": True}
"""Of obstore's requests, each of which it repeats within `RETRIES`."""
RETRIES: Any = {"max_retries": 3}


@dataclass(frozen=True)
class DuckDbSecret:
    """The options of a secret of DuckDB's, and the extensions that it needs."""

    extensions: tuple[str, ...]
    options: tuple[str, ...] = field(repr=False)


class StorageKind(ABC):
    """A kind of object store. Properties are those of pyiceberg's FileIO, which may contain secrets; what a kind does
    not know it ignores. Without credentials among them, each client looks where the store's own tools do."""

    scheme: ClassVar[str]
    """Of the URIs of warehouses."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Schemes by which engines name the same files."""
    form: ClassVar[str]
    """What a warehouse looks like, for people."""
    prefixes: ClassVar[tuple[str, ...]]
    """What the names of its properties begin with."""
    short_names: ClassVar[Mapping[str, str]]
    """Properties by the names that settings and credentials give them."""
    vended: ClassVar[tuple[str, ...]]
    """Properties that are credentials, and given to clients of the REST catalog that ask for some."""
    java_io: ClassVar[str]
    """The class of Iceberg's Java library that opens files."""
    trino_remark: ClassVar[str] = ""
    """A comment on the credentials that Trino takes from a REST catalog."""
    java_bundle: ClassVar[str]
    """What that class needs from Maven: group:name:version."""
    environment: ClassVar[tuple[str, ...]] = ()
    """Variables that obstore reads beside the credentials that it is given, and that may contradict them."""

    @abstractmethod
    def split(self, location: str) -> tuple[str, str]:
        """The bucket and the key of a location; the key may be empty. Raises LakeError for a location without a
        bucket."""

    @abstractmethod
    def file_system(self, location: str, properties: Mapping[str, str]) -> tuple[Any, str]:
        """An Arrow file system, and the path of the location within it. Threads may share it. Raises LakeError."""

    def object_store(self, location: str, properties: Mapping[str, str]) -> Any:
        """A store of obstore's for the bucket of a location. Raises LakeError if it cannot be made, without a part of
        the credentials."""
        client_library()
        fault = self.fault_of(properties)
        if fault is not None:
            raise CredentialsError(f"the credentials for {location} cannot be right: {fault}", "write them anew")
        try:
            return self.opened(location, properties)
        except (LakeError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic of obstore's is no Exception
            failure = type(error).__name__
        # Not in the block above: obstore's text may show a key, and would go along as the context.
        clashing = "".join(f", and unset ${name}" for name in self.environment if name in os.environ)
        raise LakeError(
            f"obstore cannot open {location} with its storage properties and credentials ({failure})",
            f"check the endpoint, which is a URL such as https://host, and the credentials{clashing}",
        )

    @abstractmethod
    def opened(self, location: str, properties: Mapping[str, str]) -> Any:
        """As `object_store`, with obstore's errors."""

    def fault_of(self, properties: Mapping[str, str]) -> str | None:
        """Why credentials among the properties cannot be right, without a part of them; None if nothing shows it."""
        return None

    def properties_in(self, root: str, location: str, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Those of the properties of `root`, a location of any kind, that may be used for another location, which may
        come from a file that others have written. Raises LakeError if a client may not even use its own."""
        return properties

    @abstractmethod
    def java_properties(self, location: str, properties: Mapping[str, str]) -> dict[str, str]:
        """The properties of `java_io`."""

    @abstractmethod
    def trino_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """What Trino's catalog needs besides credentials."""

    def duckdb_secret(self, properties: Mapping[str, str]) -> DuckDbSecret | None:
        """With which DuckDB reaches the store by itself; None where it gets the files from this program."""
        return None

    @abstractmethod
    def duckdb_snippet(self, location: str, properties: Mapping[str, str]) -> str:
        """Statements with which a user's DuckDB reaches the store, with credentials of where it runs."""

    def hints(self, location: str, properties: Mapping[str, str]) -> dict[str, str]:
        """What a client of the REST catalog gets of these properties, under the names that pyiceberg and Iceberg's
        Java library have for them."""
        return dict(properties) | self.java_properties(location, properties)

    def pyiceberg_properties(self, location: str, properties: Mapping[str, str]) -> dict[str, str]:
        """What a user's pyiceberg needs; `properties` has no secrets."""
        return dict(properties)

    def normalised(self, location: str) -> str | None:
        """The URI of a warehouse as it is stored; None if it names none."""
        rest = location.partition("://")[2].strip("/")
        return f"{self.scheme}://{rest}" if rest else None

    def named(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Credentials that were read, as a document of them or line by line, under the names of properties. Raises
        ValueError."""
        return {self.short_names.get(name, name): value for name, value in given.items()}

    def has_credentials(self, properties: Mapping[str, str]) -> bool:
        """Whether credentials are among the properties."""
        return any(name in properties for name in self.vended)

    def of_kind(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Those of the properties that are of this kind."""
        return {name: value for name, value in properties.items() if name.startswith(self.prefixes)}


def bucket_and_key(location: str) -> tuple[str, str]:
    """The two parts of scheme://bucket/key. Raises LakeError if there is no bucket."""
    bucket, _, key = location.partition("://")[2].partition("/")
    if not bucket:
        raise LakeError(f"{location!r} names no bucket", "give a URI with the bucket after ://")
    return bucket, key


def plain_key(key: str, refused: str = "", last: str = "") -> str:
    """The key of an object, if the store and its client take it as it is. `refused`: characters that the store takes
    for others; `last`: those that it takes off a name's end. Raises LakeError."""
    for name in key.rstrip("/").split("/") if key else ():
        if name in ("", ".", "..") or any(not c.isprintable() or c in refused for c in name) or name[-1] in last:
            raise LakeError(
                f"no object can have {name!r} in its name in this store",
                "rename the schema or table, or give it a storage profile in another one",
            )
    return key


def client_library() -> Any:
    """obstore. Raises LakeError if it is not installed."""
    try:
        import obstore
    except ImportError as error:
        raise LakeError(
            "obstore, which reaches object stores, is not installed", "pip install 'mirror-pump[lake]'"
        ) from error
    return obstore


def header_fault(properties: Mapping[str, str], names: Collection[str]) -> str | None:
    """Which of the properties by these names cannot be a part of a header of HTTP: obstore would panic."""
    wrong = [name for name in names if not (value := properties.get(name, "")).isascii() or not value.isprintable()]
    return f"{wrong[0]} has a line break or another character that is not printable ASCII" if wrong else None
