"""Column types of mirrored values and their Arrow types (docs/types.md). Arrow is loaded with the first of
these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from decoders.kinds import FACTS, Kind, KindFacts
from decoders.masks import Mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnType", "Kind"]


@cache
def _arrow_type(kind: Kind) -> pa.DataType:
    """The Arrow type of a kind that has one for all its columns."""
    import pyarrow

    arrow = FACTS[kind].arrow
    assert arrow is not None
    return arrow(pyarrow)


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
        return self.facts.holds_all

    @property
    def facts(self) -> KindFacts:
        """What holds for all values of its kind."""
        return FACTS[self.kind]

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return self.facts.is_whole

    @property
    def is_temporal(self) -> bool:
        """Whether the values are days or instants, counted from 1970."""
        return self.facts.is_temporal

    @property
    def is_ordinal(self) -> bool:
        """Whether the values are numbers of 64 bits at most, or counted in such, in their order: what cut-lines,
        ranges and statistics of keys are made of."""
        return self.is_whole or self.is_temporal

    @property
    def is_floating(self) -> bool:
        """Whether two different values may be equal to an engine."""
        return self.facts.is_floating

    @property
    def is_document(self) -> bool:
        """Whether the values are documents in binary form: engines read them, but print them in ways of their own."""
        return self.kind is Kind.VARIANT

    @property
    def as_text(self) -> ColumnType:
        """The type in which texts stand for documents; itself for all others."""
        return ColumnType(Kind.STRING) if self.is_document else self

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
        if self.facts.arrow is not None:
            return _arrow_type(self.kind)
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
