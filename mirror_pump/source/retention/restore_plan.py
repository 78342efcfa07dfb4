"""Which partitions a table gets back below its cut-line: those that have left, and others for rows outside of these.
No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mirror_pump.database.quoting import printed_identifier, shortened
from mirror_pump.model import EVERYTHING_IN_HEAP, TableName, TierKind
from mirror_pump.source.relations.tier_keys import name_token


@dataclass(frozen=True)
class ShedPartition:
    """A partition that has left the heap, as modak.partitions has it."""

    partition_id: str
    relation_id: int | None
    lo: int
    hi: int
    by_owner: bool
    """The table's owner dropped or detached it, and not the mirror."""
    still_there: str | None
    """The name of its relation, if that exists: it was detached and not dropped."""


@dataclass(frozen=True)
class RestoredRange:
    """A partition to be made, for rows with a tier value in [lo, hi)."""

    lo: int
    hi: int
    name: str
    """Its name, without a schema, if that is free."""
    if_filled: bool
    """Without any rows no partition is needed: none ever had this range, or its owner took it away."""


def plan_ranges(
    table: TableName,
    kind: TierKind,
    shed: Iterable[ShedPartition],
    attached: Sequence[tuple[int, int]],
    cut: int,
    floor: int,
    *,
    gaps: bool,
) -> list[RestoredRange]:
    """Ranges that together with the `attached` partitions cover [floor, cut) without overlapping.

    `gaps`: rows may also be where no partition ever was. `shed`: where two overlap, the first one counts. A partition
    keeps the bounds that it had, also if rows below `floor`, the retention line, are gone.
    """
    taken = list(attached)
    ranges = []
    for partition in shed:
        name = own_name(table, partition.partition_id)
        for number, (lo, hi) in enumerate(_without((partition.lo, partition.hi), taken)):
            if hi <= floor:
                continue
            table_name = name if not number else shortened(name, f"_{number + 1}")
            ranges.append(RestoredRange(lo, hi, table_name, partition.by_owner))
            taken.append((lo, hi))
    for lo, hi in _without((floor, cut), taken) if gaps else ():
        token = "oldest" if lo == EVERYTHING_IN_HEAP else f"p{name_token(kind, lo)}"
        ranges.append(RestoredRange(lo, hi, shortened(table.name, f"_restored_{token}"), if_filled=True))
    return sorted(ranges, key=lambda restored: restored.lo)


def own_name(table: TableName, partition_id: str) -> str:
    """The name of a partition's relation, from its ID: the printed name with its schema, and ` #` and a number if
    several partitions have had it."""
    prefix = printed_identifier(table.schema) + "."
    text = partition_id.removeprefix(prefix) if partition_id.startswith(prefix) else partition_id.rpartition(".")[2]
    head, mark, number = text.rpartition(" #")
    text = head if mark and number.isdigit() else text
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('""', '"')
    return text


def _without(whole: tuple[int, int], taken: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of a range that are in none of the others."""
    start, end = whole
    for lo, hi in sorted(taken):
        if hi <= start:
            continue
        if lo >= end:
            break
        if lo > start:
            yield start, lo
        start = max(start, hi)
    if start < end:
        yield start, end
