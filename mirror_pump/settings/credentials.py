"""Credentials by reference: read from the environment, or from a file that the environment names, and kept nowhere.

Of a reference `archive`, the variable MODAK_CREDENTIALS_ARCHIVE holds the credentials, or
MODAK_CREDENTIALS_ARCHIVE_FILE the path of a file that holds them: a JSON object, or lines `key=value`. The file is read
again whenever it has changed, so that keys can be renewed while a program runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mirror_pump.errors import CredentialsError, UsageError
from mirror_pump.runtime.file_systems import file_version
from mirror_pump.storage_kinds import StorageKind

_PREFIX = "MODAK_CREDENTIALS_"
_REFERENCE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PROPERTY = re.compile(r"(?:s3|gcs|adls|client)\.[A-Za-z0-9.-]+")
_CATALOG_PROPERTY = re.compile(
    r"token|credential|scope|audience|resource|warehouse|prefix|oauth2-server-uri|ugi"
    r"|(?:rest|header|glue|hive)\.[A-Za-z0-9.-]+"
)
_SECRET = re.compile(r"secret|password|token|key|credential|sas|authorization|connection-string$", re.IGNORECASE)
"""Words in the names of properties whose values are never shown. The ID of an access key is among them."""
_SHORTEST_SECRET = 4
"""Characters. Shorter values are left in texts: they would be found everywhere."""

Signature = tuple[str, object]
"""Changes when the credentials may have changed."""


def is_reference(text: str) -> bool:
    """Whether credentials can be referred to by this text."""
    return _REFERENCE.fullmatch(text) is not None


def is_property(name: str) -> bool:
    """Whether this is the name of a storage property, as pyiceberg's FileIO has it."""
    return _PROPERTY.fullmatch(name) is not None


def is_catalog_property(name: str) -> bool:
    """Whether this is the name of a property of a catalog or its storage, as pyiceberg's catalogs have it. None by
    which pyiceberg would import a module is."""
    return _CATALOG_PROPERTY.fullmatch(name) is not None or is_property(name)


def is_secret(name: str) -> bool:
    """Whether the value of this property must not be stored or shown."""
    return _SECRET.search(name) is not None


def check_reference(reference: str | None, example: str) -> None:
    """Raises UsageError unless credentials can be referred to so. `example`: a name for them."""
    if reference is not None and not is_reference(reference):
        # It may be a secret that was taken for the reference.
        name = variable(example)
        raise UsageError(
            "--credentials takes a name that refers to credentials: letters, digits and _",
            f"name them {example}, say, and put them into ${name} or ${name}_FILE",
        )


def options_of(arguments: Sequence[str], accepts: Callable[[str], bool], properties: str) -> dict[str, str]:
    """What arguments `--option NAME=VALUE` give. `accepts`: tells which names properties may have; `properties`: what
    they are, with an example. Raises UsageError, without repeating a secret."""
    options = {}
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not separator or not value or not accepts(name):
            raise UsageError(f"--option takes NAME=VALUE with {properties}")
        if is_secret(name):
            raise UsageError(
                f"{name} is a secret, or a part of one: everybody who may read the mirror sees options",
                "put it into the credentials, and name these by --credentials",
            )
        options[name] = value
    return options


def variable(reference: str) -> str:
    """The environment variable that holds the credentials."""
    return _PREFIX + reference.upper()


def without_secrets(text: str, properties: Mapping[str, str]) -> str:
    """`text` with the secrets among the values of these storage properties replaced by `***`."""
    for name, value in properties.items():
        if len(value) >= _SHORTEST_SECRET and is_secret(name):
            text = text.replace(value, "***")
    return text


class CredentialSource:
    """The credentials behind one reference. Threads may share it."""

    def __init__(self, reference: str, kind: StorageKind, accepts: Callable[[str], bool] = is_property) -> None:
        """`kind`: of the store that they open, which has short names for them. `accepts`: tells which names properties
        may have."""
        self._reference = reference
        self._kind = kind
        self._accepts = accepts
        self._read: tuple[Signature, dict[str, str]] | None = None

    @property
    def place(self) -> str:
        """Where the credentials come from, for people."""
        name = variable(self._reference)
        path = os.environ.get(f"{name}_FILE")
        return f"${name}" if path is None else f"{path} (${name}_FILE)"

    @property
    def from_file(self) -> bool:
        """Whether they are in a file, which can be renewed while this program runs."""
        return f"{variable(self._reference)}_FILE" in os.environ

    def properties(self) -> Mapping[str, str]:
        """The storage properties. Raises CredentialsError if there are none, or if they cannot be understood."""
        signed_properties = self._read
        signature = self._signature()
        if signed_properties is None or signed_properties[0] != signature:
            signed_properties = self._read = signature, self._parse(self._text())
        return signed_properties[1]

    def _signature(self) -> Signature:
        name = variable(self._reference)
        path = os.environ.get(f"{name}_FILE")
        return (name, os.environ.get(name)) if path is None else (path, file_version(path))

    def _text(self) -> str:
        name = variable(self._reference)
        path = os.environ.get(f"{name}_FILE")
        if path is not None:
            try:
                return Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise CredentialsError(
                    f"the credentials {self._reference} cannot be read from {self.place}: {reason}",
                    "put them there, readable for this process; it looks again by itself",
                ) from None
        text = os.environ.get(name)
        if text is None:
            raise CredentialsError(
                f"there are no credentials {self._reference}: neither {name} nor {name}_FILE is set in the environment",
                f"set {name}_FILE to the path of a file with them, and start this program again",
            )
        return text

    def _parse(self, text: str) -> dict[str, str]:
        try:
            given = json.loads(text) if text.lstrip().startswith("{") else _pairs(text)
            properties = self._kind.named(given)
        except (ValueError, RecursionError):
            # Without its cause, whose message may repeat a part of the text.
            raise self._wrong("they are neither a JSON object nor lines `key=value`") from None
        for name, value in properties.items():
            if not self._accepts(name):
                raise self._wrong(
                    f"{name[:40]!r} is no property; known: {', '.join(self._kind.short_names)}, or names such as"
                    f" {self._kind.short_names['endpoint']}"
                )
            if not isinstance(value, str) or not value:
                raise self._wrong(f"the value of {name} is no text")
        if not properties:
            raise self._wrong("they are empty")
        fault = self._kind.fault_of(properties)
        if fault is not None:
            raise self._wrong(fault)
        return properties

    def _wrong(self, reason: str) -> CredentialsError:
        first, second, *_ = self._kind.short_names
        return CredentialsError(
            f"the credentials {self._reference} in {self.place} cannot be understood: {reason}",
            f'write them as {{"{first}": "...", "{second}": "..."}}, or as lines {first}=... and {second}=...',
        )


def _pairs(text: str) -> dict[str, Any]:
    """The lines `key=value` of a text, without comments. Raises ValueError."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(separator for _, separator, _ in pairs):
        raise ValueError
    return {name.strip(): value.strip() for name, _, value in pairs}
