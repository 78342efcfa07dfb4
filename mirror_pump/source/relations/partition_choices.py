"""How the lake table of a plain mirrored table is laid out: what a user asks for, and what a table has.

day(created_at), bucket(16, tenant), truncate(4, "Postal code"), region
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirror_pump.errors import UsageError
from mirror_pump.model import LakePartitioning, MirroredTable

_NAME = r"""("(?:[^"]|"")+"|[^\s",()]+)"""
_FIELD = re.compile(rf"\s*(?:(\w+)\s*\(\s*(?:([0-9]{{1,10}})\s*,\s*)?{_NAME}\s*\)|{_NAME})\s*(?:,(?=\s*\S)|$)")
_PLAIN = ("identity", "year", "month", "day", "hour")
_NUMBERED = ("bucket", "truncate")
_LARGEST = 1_000_000_000
"""Largest N of `bucket(N, ...)` and W of `truncate(W, ...)`: Iceberg's Java code computes with 32 bits."""
_SORTED = re.compile(rf"\s*{_NAME}(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?\s*(?:,(?=\s*\S)|$)", re.IGNORECASE)
_SORT_EXAMPLE = "write it like 'tenant, created_at desc nulls last'"
_EXAMPLE = "write it like 'day(created_at), bucket(16, tenant), truncate(4, code), region'"


@dataclass(frozen=True)
class PartitionChoice:
    """A partition field as a user names it."""

    column: str
    transform: str
    """Iceberg's name, as in PartitionedColumn."""

    def __str__(self) -> str:
        name = _quoted(self.column)
        function, bracket, number = self.transform.rstrip("]").partition("[")
        if bracket:
            return f"{function}({number}, {name})"
        return name if self.transform == "identity" else f"{self.transform}({name})"


def parse_partition_by(text: str) -> tuple[PartitionChoice, ...]:
    """The fields of a `--partition-by`. Raises UsageError, with what to write, for any other text."""
    fields: list[PartitionChoice] = []
    place = 0
    while place < len(text):
        matched = _FIELD.match(text, place)
        if matched is None:
            raise UsageError(f"--partition-by is not understood from {text[place:]!r} on", _EXAMPLE)
        fields.append(_choice(matched))
        place = matched.end()
    if not fields:
        raise UsageError("--partition-by names no column", _EXAMPLE)
    if len({str(field) for field in fields}) < len(fields):
        raise UsageError("--partition-by names a field twice")
    return tuple(fields)


def _choice(matched: re.Match[str]) -> PartitionChoice:
    function, number, inner, plain = matched.groups()
    if plain is not None:
        return PartitionChoice(_unquoted(plain), "identity")
    name = function.lower()
    column = _unquoted(inner)
    if name in _NUMBERED and number is not None and 0 < int(number) <= _LARGEST:
        return PartitionChoice(column, f"{name}[{int(number)}]")
    if name in _PLAIN and number is None:
        return PartitionChoice(column, name)
    raise UsageError(f"--partition-by: {matched[0].strip().rstrip(',')} is no partition field", _EXAMPLE)


@dataclass(frozen=True)
class SortChoice:
    """A column by which rows are sorted, as a user names it."""

    column: str
    descending: bool = False
    nulls_last: bool = True

    def __str__(self) -> str:
        order = f"{_quoted(self.column)}{' desc' * self.descending}"
        # As in PostgreSQL, NULL counts as the largest value.
        if self.nulls_last != self.descending:
            return order
        return f"{order} nulls {'last' if self.nulls_last else 'first'}"


def parse_sort_by(text: str) -> tuple[SortChoice, ...]:
    """The columns of a `--sort-by`. Raises UsageError, with what to write, for any other text."""
    columns: list[SortChoice] = []
    place = 0
    while place < len(text):
        matched = _SORTED.match(text, place)
        if matched is None:
            raise UsageError(f"--sort-by is not understood from {text[place:]!r} on", _SORT_EXAMPLE)
        name, direction, nulls = matched.groups()
        descending = (direction or "").lower() == "desc"
        nulls_last = nulls.lower() == "last" if nulls else not descending
        columns.append(SortChoice(_unquoted(name), descending, nulls_last))
        place = matched.end()
    if not columns:
        raise UsageError("--sort-by names no column", _SORT_EXAMPLE)
    if len({column.column for column in columns}) < len(columns):
        raise UsageError("--sort-by names a column twice")
    return tuple(columns)


def partition_choices(table: MirroredTable) -> tuple[PartitionChoice, ...]:
    """By what a plain mirrored table was registered to be partitioned. Empty for a table with a cut-line, whose lake
    partitions are a matter of its retention."""
    if table.tier is not None:
        return ()
    return choices_of(table.partitioning, {column.field_id: column.name for column in table.columns})


def choices_of(partitioning: LakePartitioning | None, names: Mapping[int, str]) -> tuple[PartitionChoice, ...]:
    """A partitioning as a user names it. `names`: of columns, by field ID."""
    fields = () if partitioning is None else partitioning.fields
    return tuple(PartitionChoice(names[field.field_id], field.transform) for field in fields)


def sort_choices(table: MirroredTable) -> tuple[SortChoice, ...]:
    """By what a plain mirrored table was registered to be sorted, without columns that are gone."""
    return sorting_of(table.partitioning, {column.field_id: column.name for column in table.columns})


def sorting_of(partitioning: LakePartitioning | None, names: Mapping[int, str]) -> tuple[SortChoice, ...]:
    """An order as a user names it. `names`: of columns, by field ID."""
    order = () if partitioning is None else partitioning.order
    return tuple(
        SortChoice(names[column.field_id], column.descending, column.nulls_last)
        for column in order
        if column.field_id in names
    )


def layout_text(choices: Sequence[PartitionChoice | SortChoice]) -> str:
    """As `--partition-by` or `--sort-by` takes it."""
    return ", ".join(map(str, choices))


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[^\s\",()]+", name) else '"' + name.replace('"', '""') + '"'


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text
