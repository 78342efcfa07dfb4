"""The user's choice of a lake table's partitions (`--lake-partition`), as a partition transform of Iceberg. No I/O.

Lake partitions are Iceberg's: units of the calendar in UTC, or multiples of a number. They need not be those of the
heap, and the cut-line may lie within one.
"""

from __future__ import annotations

from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import TableName, TierKind
from mirror_pump.source.relations.widths import Width

OPTION = "--lake-partition"
AS_HEAP = "width"
"""The choice of partitions about as wide as those of the heap."""

_DATES = ("day", "month", "year")
_TIMES = ("hour", *_DATES)
_LARGEST_WIDTH = 1_000_000_000
"""Iceberg's Java code computes `truncate[W]` with 32 bits: a larger W could overflow."""
_DAY = {TierKind.DATE: 1, TierKind.TIMESTAMP: 86_400_000_000, TierKind.TIMESTAMPTZ: 86_400_000_000}
"""A day in tier values."""
_LONGEST_MONTH = 31
_LONGEST_YEAR = 366
_MONTHS_OF_YEAR = 12


def lake_transform(kind: TierKind, choice: str, width: Width | None, table: TableName) -> str:
    """The partition transform for a choice. `width`: that of the heap's partitions, None if there is none to tell.

    `width` as the choice means partitions as wide as those of the heap: of integers exactly so, of times the largest
    unit that is not wider. Raises UsageError for a choice that does not fit the tier key, and TableError if the table
    has no partition whose width could be taken.
    """
    if choice.strip().lower() != AS_HEAP:
        return _chosen_transform(kind, choice)
    if width is None:
        raise TableError(
            f"{table} has no partition whose width its lake table could take",
            f"give {OPTION} {_examples(kind)}",
        )
    return _truncation(width.span, choice) if kind is TierKind.BIGINT else _unit(kind, width)


def is_present_layout(choice: str, transform: str | None) -> bool:
    """Whether a choice may be what a lake table has. `transform`: its partition transform; None: it is not partitioned.
    `width` fits every partitioned table: the heap's partitions may have had another width."""
    if transform is None:
        return False
    words = choice.strip().lower()
    return words in (AS_HEAP, transform) or (
        words.isascii() and words.isdigit() and f"truncate[{int(words)}]" == transform
    )


def _chosen_transform(kind: TierKind, choice: str) -> str:
    words = choice.strip().lower()
    if kind is TierKind.BIGINT:
        if not (words.isascii() and words.isdigit()):
            raise UsageError(
                f"{OPTION} {choice!r} is not a width: the tier key is an integer", f"give {_examples(kind)}"
            )
        return _truncation(int(words), choice)
    if words not in (_DATES if kind is TierKind.DATE else _TIMES):
        raise UsageError(f"{OPTION} {choice!r} is no unit of a {kind.value}", f"give {_examples(kind)}")
    return words


def _truncation(width: int, choice: str) -> str:
    if not 0 < width <= _LARGEST_WIDTH:
        raise UsageError(
            f"{OPTION} {choice!r}: lake partitions would be {width} wide",
            f"give a width from 1 to {_LARGEST_WIDTH}, the largest that all engines compute alike",
        )
    return f"truncate[{width}]"


def _unit(kind: TierKind, width: Width) -> str:
    """The largest unit that is not wider than partitions of this width."""
    days = width.span // _DAY[kind]
    if width.months >= _MONTHS_OF_YEAR or days >= _LONGEST_YEAR:
        return "year"
    if width.months or days >= _LONGEST_MONTH:
        return "month"
    return "day" if days or kind is TierKind.DATE else "hour"


def _examples(kind: TierKind) -> str:
    if kind is TierKind.BIGINT:
        return f"a width such as 1000000, or `{AS_HEAP}` for that of the heap's partitions"
    return f"{', '.join(_DATES if kind is TierKind.DATE else _TIMES)}, or `{AS_HEAP}` for about that of the heap's"
