"""What a resolve has to read, and what it comes to: from a table's state to tasks, from results to a resolution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

from mirror_pump.engine.delete_conversion import ConversionResult, ConversionTask, OrderedFile
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed, naming, paths_of
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.format.schema import LakeSchema

_TASK_ROWS = 8_000_000
"""Rows whose keys one task reads: a second or less, and 64 MB if every one of them is deleted."""
_TASK_FILES = 500
"""Data files of one task: opening a small one costs as much as reading 50,000 keys."""


@dataclass(frozen=True)
class ConversionPlan:
    """Tasks to run, and what they are based on."""

    tasks: tuple[ConversionTask, ...]
    deletes: int
    """Equality-delete rows that go."""
    removed: frozenset[str]
    positions: frozenset[str]
    """Position-delete files whose rows the tasks do not repeat."""
    seen: dict[str, frozenset[str]]
    sequence_number: int
    complete: bool


def listing_for(table: LakeTable) -> Listing:
    """A listing that keeps what plans of this table need; to be used again for its later states."""
    return Listing(table.storage, (*table.schema.key_ids, PATH_ID))


def plan_conversion(table: LakeTable, listing: Listing) -> ConversionPlan | None:
    """How to resolve the equality deletes that the table has in this state; None if there is nothing to do.

    Deletes stay that this project would not have made (on other columns than the key, of other partition specs), and
    those that may concern data files in which positions cannot be named (not Parquet, other specs). Reads the manifests
    that the listing does not know yet. Raises LakeError.
    """
    by_manifest = listing.files(table.manifests)
    data: list[LiveFile] = []
    equality: list[LiveFile] = []
    positions: list[LiveFile] = []
    others: list[LiveFile] = []
    schema = table.schema
    for file, usual in listed(by_manifest, table.manifests, table.spec_id):
        if file.content is FileContent.DATA:
            # Empty ones are anchors of commits that only delete.
            if file.records:
                (data if usual else others).append(file)
        elif file.content is FileContent.POSITION_DELETES:
            if usual:
                positions.append(file)
        elif usual and set(file.equality_ids) == set(schema.key_ids):
            equality.append(file)
    if table.partitioned:
        return None
    unusual = [_Ranged.of(file, schema) for file in others]
    resolved = [one for one in equality if not any(map(_Ranged.of(one, schema).reaches, unusual))]
    if not resolved:
        return None
    tasks = tuple(
        ConversionTask(
            data=tuple(OrderedFile(one.file.path, one.file.sequence_number) for one in data_files),
            deletes=tuple(OrderedFile(one.file.path, one.file.sequence_number) for one in deletes),
            positions=naming(positions, [one.file.path for one in data_files]),
            schema=schema,
            location=table.location,
            storage=table.storage,
        )
        for data_files, deletes in _groups(data, resolved, schema)
    )
    pending = sum(file.content is FileContent.EQUALITY_DELETES for files in by_manifest.values() for file in files)
    return ConversionPlan(
        tasks=tasks,
        deletes=sum(file.records for file in resolved),
        removed=frozenset(file.path for file in resolved),
        positions=frozenset(chain.from_iterable(task.positions for task in tasks)),
        seen=paths_of(by_manifest),
        sequence_number=table.sequence_number,
        complete=len(resolved) == pending,
    )


def file_rewrite_of(plan: ConversionPlan, results: Sequence[ConversionResult]) -> FileRewrite:
    """The change that the plan's tasks came to."""
    added = tuple(result.file for result in results if result.file is not None)
    named = frozenset(chain.from_iterable(result.data for result in results))
    return FileRewrite(
        added=added,
        removed=plan.removed,
        relied_on=named | plan.positions,
        seen=plan.seen,
        sequence_number=plan.sequence_number,
        complete=plan.complete,
    )


@dataclass(frozen=True, slots=True)
class _Ranged:
    """A file with the range of each key column in it."""

    file: LiveFile
    ranges: tuple[tuple[Any, Any], ...]
    """Lowest and highest value, or None."""

    @classmethod
    def of(cls, file: LiveFile, schema: LakeSchema) -> Self:
        return cls(
            file,
            tuple(
                (
                    ordered(field.type, file.lower_bounds.get(field.field_id)),
                    ordered(field.type, file.upper_bounds.get(field.field_id)),
                )
                for field in schema.key.fields
            ),
        )

    def reaches(self, data: _Ranged) -> bool:
        """Whether this equality delete can hide a row of a data file (Iceberg spec, scan planning): by its number, and
        by the key columns' ranges."""
        return self.file.sequence_number > data.file.sequence_number and not any(
            _apart(one, other) or _apart(other, one) for one, other in zip(self.ranges, data.ranges, strict=True)
        )


def _apart(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether the first range ends before the second begins."""
    return one[1] is not None and other[0] is not None and bool(one[1] < other[0])


def _groups(
    data: Sequence[LiveFile], deletes: Sequence[LiveFile], schema: LakeSchema
) -> Iterator[tuple[list[_Ranged], list[_Ranged]]]:
    """For each task, data files that may hold a deleted row, and the deletes that reach one of them."""
    ranged = sorted((_Ranged.of(one, schema) for one in deletes), key=lambda one: -one.file.sequence_number)
    group: list[_Ranged] = []
    rows = 0
    # Neighbours in age are likely to be reached by the same deletes.
    for file in sorted(data, key=lambda one: one.sequence_number):
        candidate = _Ranged.of(file, schema)
        if not any(one.reaches(candidate) for one in ranged):
            continue
        if group and (rows + file.records > _TASK_ROWS or len(group) >= _TASK_FILES):
            yield group, _reaching(group, ranged)
            group, rows = [], 0
        group.append(candidate)
        rows += file.records
    if group:
        yield group, _reaching(group, ranged)


def _reaching(group: Sequence[_Ranged], deletes: Sequence[_Ranged]) -> list[_Ranged]:
    return [one for one in deletes if any(map(one.reaches, group))]
