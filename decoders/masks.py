"""Masks: what the lake gets in place of the values of a column that must not leave the server.

A mask is a function of the text that Postgres prints for a value (UTF-8). Equal texts have equal masks, in copies, in
the stream and wherever else a value is parsed, since parsing applies it (decoders/text.py). NULL stays NULL.

sha256          the SHA-256 digest in 64 hexadecimal digits
hmac(KEY)       HMAC-SHA-256 in 64 hexadecimal digits, with a key that is named, never stored: hmac(env:NAME) is the
                value of an environment variable, hmac(file:PATH) the content of a file without line ends behind it
null            NULL
prefix(N)       the first N characters
constant(TEXT)  TEXT
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_LEAST_KEY_BYTES = 16
_MOST_KEY_BYTES = 1 << 20
_CHECKED = b"mirror-pump"
"""What the check of a key is the HMAC of."""
_CHECK_DIGITS = 16


class MaskMethod(StrEnum):
    """How a mask is computed, as it is written."""

    SHA256 = "sha256"
    HMAC = "hmac"
    NULL = "null"
    PREFIX = "prefix"
    CONSTANT = "constant"


_WITHOUT_ARGUMENT = frozenset({MaskMethod.SHA256, MaskMethod.NULL})


class MaskKeyUnusable(ValueError):
    """The key of a mask is not where its reference says, or is another one than at registration."""


@dataclass(frozen=True)
class Mask:
    """A mask of one column. Picklable; it has the reference of a key, not the key."""

    method: MaskMethod
    argument: str = ""
    """The key's reference, the number of characters, or the constant."""
    key_check: str = ""
    """The beginning of the HMAC of a fixed text: it tells whether the key is the one of the registration."""

    def __str__(self) -> str:
        """As a user writes it."""
        return self.method.value if self.method in _WITHOUT_ARGUMENT else f"{self.method.value}({self.argument})"

    @classmethod
    def parse(cls, text: str) -> Mask:
        """The inverse of `str()`. Raises ValueError for any other text."""
        name, opening, rest = text.partition("(")
        method = MaskMethod(name)
        if (method in _WITHOUT_ARGUMENT) == bool(opening) or (opening and not rest.endswith(")")):
            raise ValueError(text)
        argument = rest[:-1]
        if method is MaskMethod.PREFIX and not (argument.isascii() and argument.isdigit() and int(argument) > 0):
            raise ValueError(text)
        if method is MaskMethod.HMAC:
            kind, _, place = argument.partition(":")
            if kind not in ("env", "file") or not place or (kind == "file" and not Path(place).is_absolute()):
                raise ValueError(text)
        return cls(method, argument)

    def with_key_check(self) -> Mask:
        """The mask for a registration. Raises MaskKeyUnusable if its key cannot be read."""
        if self.method is not MaskMethod.HMAC:
            return self
        return replace(self, key_check=_check(_key(self.argument)))

    def require_key(self) -> None:
        """Raises MaskKeyUnusable if the key cannot be read, or is not that of the registration."""
        if self.method is MaskMethod.HMAC and _check(_key(self.argument)) != self.key_check:
            raise MaskKeyUnusable(
                f"the key {self.argument} of a mask is not the one that the table was registered with: equal values"
                " would have different masks. Give the pump the former key, or unregister and register the table"
            )

    def masked(self, texts: pa.Array) -> pa.Array:
        """The masks of `texts` (string). Raises MaskKeyUnusable."""
        import pyarrow as pa
        import pyarrow.compute as pc

        match self.method:
            case MaskMethod.NULL:
                return pa.nulls(len(texts), pa.string())
            case MaskMethod.PREFIX:
                return pc.utf8_slice_codeunits(texts, 0, int(self.argument))
            case MaskMethod.CONSTANT:
                return pc.if_else(pc.is_valid(texts), self.argument, pa.scalar(None, pa.string()))
            case MaskMethod.SHA256:
                return _digests(texts, lambda text: hashlib.sha256(text).hexdigest())
            case MaskMethod.HMAC:
                self.require_key()
                key = _key(self.argument)
                return _digests(texts, lambda text: hmac.digest(key, text, "sha256").hex())


def _digests(texts: pa.Array, digest: Callable[[bytes], str]) -> pa.Array:
    """Each distinct text is digested once."""
    import pyarrow as pa

    encoded = texts.dictionary_encode()
    digests = [digest(text) for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
    return pa.array(digests, pa.string()).take(encoded.indices)


def _check(key: bytes) -> str:
    return hmac.digest(key, _CHECKED, "sha256").hex()[:_CHECK_DIGITS]


@lru_cache
def _key(reference: str) -> bytes:
    """The key's bytes, which a process reads once. Raises MaskKeyUnusable, which names the place and not the key."""
    kind, _, place = reference.partition(":")
    try:
        key = os.environ[place].encode() if kind == "env" else _content(Path(place)).rstrip(b"\r\n")
    except (KeyError, OSError, ValueError) as error:
        what = f"environment variable {place} is not set" if kind == "env" else f"{place} cannot be read"
        raise MaskKeyUnusable(
            f"the key of a mask is missing: {what}. `register`, the pump and the machines of its tasks all need it"
        ) from error
    if len(key) < _LEAST_KEY_BYTES:
        raise MaskKeyUnusable(
            f"the key {reference} of a mask is shorter than {_LEAST_KEY_BYTES} bytes. Put the key there that the table"
            " was registered with, or name another place for that of a new table"
        )
    return key


def _content(path: Path) -> bytes:
    """Raises OSError, and ValueError for what is no key, such as /dev/zero."""
    with path.open("rb") as file:
        key = file.read(_MOST_KEY_BYTES + 1)
    if len(key) > _MOST_KEY_BYTES:
        raise ValueError("it has more bytes than any key")
    return key
