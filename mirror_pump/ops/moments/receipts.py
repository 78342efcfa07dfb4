"""Receipts of moments: what each table's rows were, signed with a key of the user's.

A receipt is a JSON document. Its signature is HMAC-SHA256 over the document without the signature, as UTF-8 JSON with
sorted keys and without blanks. It shows that who had the key wrote it; who has the key can write another one.

The file may come from anywhere. So it is read as one that a stranger wrote: in the form below or not at all,
and nothing of it is more than a text or a number to compare with what the lake has.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import format_lsn
from mirror_pump.ops.moments.digests import (
    DIGEST_DIGITS,
    MOST_RANGES,
    DigestColumn,
    RangeDigest,
    RowsDigest,
    RowText,
    first_text,
    values_text,
)
from mirror_pump.runtime.handed_files import read_handed
from mirror_pump.source.catalog.kept_moments import KeptMoment, KeptTable

_ALGORITHM = "HMAC-SHA256"
_SHORTEST_KEY = 16
"""Bytes."""
_LONGEST_KEY = 1 << 20
_LONGEST = 256 << 20
"""Bytes of a receipt: ten thousand tables of a hundred columns have less."""


class DigestMethod(StrEnum):
    """How digests are made. Another way gets another name."""

    VALUES = "sha256-sum-4x64-values"
    """Of each column the value, and the raw text too."""
    FIRST = "sha256-sum-4x64"
    """Of each column the raw text if there is one, else the value. Raw text columns are known by their names. Receipts
    of this method are checked, and none is written."""

    @property
    def row_text(self) -> RowText:
        """What a row's text is made of."""
        return values_text if self is DigestMethod.VALUES else first_text


def read_key(path: Path | None, *, checks: bool) -> bytes | None:
    """A key for signatures, without white space at its end. `checks`: to check one, not to sign. Raises UsageError."""
    if path is None:
        return None
    key = read_handed(path, _LONGEST_KEY, "the key", "name another file").rstrip()
    if len(key) < _SHORTEST_KEY:
        raise UsageError(
            f"the key in {path} has {len(key)} bytes, and one for receipts has {_SHORTEST_KEY} or more",
            "name the file of the key that the receipt was signed with"
            if checks
            else "make one in a new file, and name that: openssl rand -hex 32 > receipt.key",
        )
    return key


def receipt_of(
    moment: KeptMoment, digests: Sequence[tuple[KeptTable, RowsDigest]], key: bytes | None
) -> dict[str, Any]:
    """The receipt of a moment, signed if there is a key."""
    document: dict[str, Any] = {
        "receipt": 1,
        "method": DigestMethod.VALUES.value,
        "moment": moment.name,
        "frontier": format_lsn(moment.frontier),
        "kept_at": moment.kept_at.isoformat(),
        "kept_by": moment.kept_by,
        "tables": [_table_json(table, digest) for table, digest in digests],
    }
    if key is not None:
        document["signature"] = {"algorithm": _ALGORITHM, "value": _signature(_signed_text(document), key)}
    return document


def _table_json(table: KeptTable, digest: RowsDigest) -> dict[str, Any]:
    return {
        "table": str(table.table),
        "snapshot_id": str(table.main_snapshot_id),
        "columns": [{"name": column.name, "type": column.type, "raw": column.raw} for column in digest.columns],
        "key": digest.key,
        "rows": digest.rows,
        "digest": digest.digest,
        "ranges": [part.to_json() for part in digest.ranges],
    }


def _signed_text(document: Mapping[str, Any]) -> bytes:
    """What a signature is of. Raises ValueError for a text that is none in UTF-8."""
    signed = {name: value for name, value in document.items() if name != "signature"}
    return json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _signature(text: bytes, key: bytes) -> str:
    return hmac.new(key, text, hashlib.sha256).hexdigest()


_ReceiptText = Annotated[str, Field(pattern=r"\A[^\x00]*\z", max_length=1 << 16)]
"""PostgreSQL and DuckDB have no texts with NUL."""
_ReceiptDigest = Annotated[str, Field(pattern=rf"\A[0-9a-f]{{{DIGEST_DIGITS}}}\z")]
_ReceiptRows = Annotated[int, Field(ge=0, lt=1 << 63)]


class _ReceiptPart(BaseModel):
    """A part of a receipt. Texts are texts and numbers are numbers; further keys of later versions are passed over."""

    model_config = ConfigDict(strict=True, frozen=True)


class _ReceiptColumn(_ReceiptPart):
    name: _ReceiptText
    type: _ReceiptText
    raw: _ReceiptText | None


class _ReceiptRange(_ReceiptPart):
    begin: _ReceiptText | None = Field(alias="from")
    rows: _ReceiptRows
    digest: _ReceiptDigest


class _ReceiptTable(_ReceiptPart):
    table: _ReceiptText
    columns: list[_ReceiptColumn] = Field(max_length=1 << 12)
    key: _ReceiptText | None
    rows: _ReceiptRows
    digest: _ReceiptDigest
    ranges: list[_ReceiptRange] = Field(min_length=1, max_length=MOST_RANGES)

    def rows_digest(self) -> RowsDigest:
        """Raises ValueError if the table does not agree with itself."""
        columns = tuple(DigestColumn(column.name, column.type, column.raw) for column in self.columns)
        ranges = tuple(RangeDigest(part.begin, part.rows, part.digest) for part in self.ranges)
        digest = RowsDigest(columns, self.key, ranges)
        if (digest.rows, digest.digest) != (self.rows, self.digest):
            raise ValueError(f"the ranges of {self.table} do not add up to its digest")
        if ranges[0].begin is not None or any(part.begin is None for part in ranges[1:]):
            raise ValueError(f"the ranges of {self.table} are not in order")
        return digest


class _ReceiptDocument(_ReceiptPart):
    receipt: Literal[1]
    method: _ReceiptText
    moment: _ReceiptText
    frontier: _ReceiptText
    tables: list[_ReceiptTable]


@dataclass(frozen=True)
class Receipt:
    """A receipt that was read."""

    method: DigestMethod
    moment: str
    frontier: str
    tables: Mapping[str, RowsDigest]
    """By the table's name."""
    is_signed: bool


def read_receipt(path: Path, key: bytes | None) -> Receipt:
    """Read a receipt, and check its signature if there is a key. Raises UsageError if the file cannot be read, and
    TableError for what is no receipt, or was changed since it was signed, or signed with another key."""
    try:
        content = _parsed(
            read_handed(path, _LONGEST, "the receipt", "name a file of `mirror-pump moment keep NAME --receipt FILE`")
        )
        signed_text = _signed_text(content)
        document = _ReceiptDocument.model_validate(content)
    except (ValueError, RecursionError) as error:
        raise TableError(
            f"{path} is no receipt: {_reason(error)}", "name a file of `mirror-pump moment keep NAME --receipt FILE`"
        ) from error
    if document.method not in tuple(DigestMethod):
        raise TableError(
            f"the digests of {path} were made by the method {document.method}",
            "check it with the release that wrote it",
        )
    signature = content.get("signature")
    if key is not None and signature is None:
        raise TableError(f"{path} is not signed", "leave out --key to compare it as it is")
    if key is not None and not _is_signature(signature, signed_text, key):
        raise TableError(f"the signature of {path} is wrong: it was changed, or signed with another key")
    try:
        tables = {table.table: table.rows_digest() for table in document.tables}
    except ValueError as error:
        raise TableError(f"{path} was changed: {error}", "take a copy of the receipt as it was written") from None
    if len(tables) < len(document.tables):
        raise TableError(f"{path} was changed: a table is in it twice", "take a copy of the receipt as it was written")
    return Receipt(DigestMethod(document.method), document.moment, document.frontier, tables, signature is not None)


def _parsed(content: bytes) -> dict[str, Any]:
    """The document. Raises ValueError, RecursionError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Another program may take the first of two, which the signature is not of.
        if twice := [name for (name, _), (following, _) in pairwise(sorted(pairs, key=_name)) if name == following]:
            raise ValueError(f"the key {twice[0]!r} is there twice")
        return dict(pairs)

    def no_number(text: str) -> object:
        raise ValueError(f"{text} is no number")

    document = json.loads(content, object_pairs_hook=unique, parse_constant=no_number)
    if not isinstance(document, dict):
        raise ValueError("it is no object")  # noqa: TRY004 (of a file, not of an argument)
    return document


def _name(pair: tuple[str, Any]) -> str:
    return pair[0]


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _is_signature(signature: object, text: bytes, key: bytes) -> bool:
    if not isinstance(signature, dict) or signature.get("algorithm") != _ALGORITHM:
        return False
    value = signature.get("value")
    # Only texts in ASCII are compared in constant time, and bytes.
    return isinstance(value, str) and hmac.compare_digest(
        value.encode(errors="replace"), _signature(text, key).encode()
    )
