"""Column types of mirrored values and their Arrow types (docs/types.md). Arrow is loaded with the first of
these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from decoders.masks import Mask

if TYPE_CHECKING:
    import pyarrow as pa


class Kind(StrEnum):
    """The Iceberg types that the mirror uses, under Iceberg's names."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    UUID = "uuid"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    LIST = "list"
    VARIANT = "variant"
    """A document of json or jsonb (decoders/variant.py)."""
    STRUCT = "struct"
    """Of change feeds only: the old row. Its fields are the LakeField's (mirror_pump.lake.format.schema)."""
    MAP = "map"
    """Of change feeds only, as STRUCT."""


@cache
def _arrow_types() -> dict[Kind, pa.DataType]:
    """The Arrow types of kinds that have one each."""
    import pyarrow as pa

    return {
        Kind.BOOLEAN: pa.bool_(),
        Kind.INT: pa.int32(),
        Kind.LONG: pa.int64(),
        Kind.FLOAT: pa.float32(),
        Kind.DOUBLE: pa.float64(),
        Kind.STRING: pa.string(),
        Kind.BINARY: pa.binary(),
        Kind.UUID: pa.binary(16),
        Kind.DATE: pa.date32(),
        Kind.TIME: pa.time64("us"),
        Kind.TIMESTAMP: pa.timestamp("us"),
        Kind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
        Kind.VARIANT: pa.struct(
            [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
        ),
    }


_PARTIAL = frozenset({Kind.DECIMAL, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.LIST, Kind.VARIANT})


_MASKED, _MASKED_AS = "string masked", " as "
"""What the text of a type with a mask consists of, besides the mask, and the check of its key between them."""


@dataclass(frozen=True)
class ColumnType:
    """Type of a lake column. Frozen and picklable: it travels to tasks and, as JSON text, into the catalog."""

    kind: Kind
    precision: int = 0
    """Total number of digits; DECIMAL only, 1 to 38."""
    scale: int = 0
    """Digits after the decimal point; DECIMAL only, 0 to precision."""
    element: ColumnType | None = None
    """Type of the elements; LIST only."""
    mask: Mask | None = None
    """What the lake gets in place of the values; STRING only."""

    @property
    def holds_all(self) -> bool:
        """Whether the type can hold every value of the Postgres type. If not, some values are stored as raw text: NaN,
        infinities, values out of range, arrays of several dimensions, documents with numbers of many digits."""
        return self.kind not in _PARTIAL

    @property
    def unmasked(self) -> ColumnType:
        """The type of the values in the lake's files, which says nothing of masks."""
        return self if self.mask is None else replace(self, mask=None)

    @property
    def shown(self) -> str:
        """For people: without the check of a mask's key, which tells whether two keys are the same."""
        return str(self if self.mask is None else replace(self, mask=replace(self.mask, key_check="")))

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type that both the stream and the copy produce for this column."""
        if self.kind not in (Kind.DECIMAL, Kind.LIST):
            return _arrow_types()[self.kind]
        import pyarrow as pa

        if self.kind is Kind.DECIMAL:
            return pa.decimal128(self.precision, self.scale)
        assert self.element is not None
        return pa.list_(self.element.arrow)

    def __str__(self) -> str:
        """Iceberg's notation: `decimal(14,2)`, `list<long>`; with the mask, if there is one."""
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        if self.kind is Kind.LIST:
            return f"list<{self.element}>"
        if self.mask is not None:
            return f"{_MASKED}{self.mask.key_check}{_MASKED_AS}{self.mask}"
        return self.kind.value

    @classmethod
    def parse(cls, text: str) -> ColumnType:
        """The inverse of `str()`. Raises ValueError for any other text."""
        if text.startswith("decimal(") and text.endswith(")"):
            precision, scale = text[len("decimal(") : -1].split(",")
            return cls(Kind.DECIMAL, int(precision), int(scale))
        if text.startswith("list<") and text.endswith(">"):
            return cls(Kind.LIST, element=cls.parse(text[len("list<") : -1]))
        if text.startswith(_MASKED):
            key_check, _, mask = text.removeprefix(_MASKED).partition(_MASKED_AS)
            return cls(Kind.STRING, mask=replace(Mask.parse(mask), key_check=key_check))
        return cls(Kind(text))
