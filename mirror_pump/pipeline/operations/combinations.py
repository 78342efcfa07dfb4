"""Which operations may come to one table in one publish, and in which order they are staged and recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import TypeAlias

from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.pipeline.operations.add_chunks import AddChunks
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.change_columns import ChangeColumns
from mirror_pump.pipeline.operations.copy_again import CopyAgain
from mirror_pump.pipeline.operations.fill_columns import FillColumns
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.operations.operation import Operation
from mirror_pump.pipeline.operations.record_publication import RecordPublication
from mirror_pump.pipeline.operations.refresh_archive import RefreshArchive
from mirror_pump.pipeline.operations.restart_copy import RestartCopy
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.pipeline.operations.truncate import Truncate

TableOperation: TypeAlias = (
    AdvanceCutline
    | ChangeColumns
    | FillColumns
    | CopyAgain
    | RecordPublication
    | Truncate
    | RestartCopy
    | RewriteFiles
    | ApplyStream
    | FoldCorrections
    | RefreshArchive
    | AddChunks
)
"""Every operation there is."""

SchemaOperation: TypeAlias = ChangeColumns | FillColumns | CopyAgain
"""What a change of the table itself comes to; at most one in a publish."""

ORDER: tuple[type[Operation], ...] = (
    AdvanceCutline,
    ChangeColumns,
    FillColumns,
    CopyAgain,
    RecordPublication,
    Truncate,
    RestartCopy,
    RewriteFiles,
    ApplyStream,
    FoldCorrections,
    RefreshArchive,
    AddChunks,
)
"""The order in which they are staged and recorded, whatever order they are given in."""

COMBINATIONS: Mapping[frozenset[type[Operation]], str] = {
    frozenset(
        {Truncate, ApplyStream}
    ): "A batch may hold a TRUNCATE and changes behind it; those before it are left out.",
    frozenset(
        {ChangeColumns, ApplyStream}
    ): "A batch spans schema changes: its segments do not, and read on by field ID.",
    frozenset({FillColumns, ApplyStream}): "As for ChangeColumns; segments behind the change have the new column.",
    frozenset({CopyAgain, ApplyStream}): "Segments behind the change count on top of the new copy.",
    frozenset({ChangeColumns, Truncate}): "One batch may hold both.",
    frozenset({FillColumns, Truncate}): "One batch may hold both; whatever is left to fill is looked for in the files.",
    frozenset({CopyAgain, Truncate}): "One batch may hold both; either empties the table.",
    frozenset({AddChunks, ApplyStream}): "Chunks that were copied meanwhile come with the next batch.",
    frozenset({AddChunks, ChangeColumns}): "As with ApplyStream: the chunks' files read on by field ID.",
    frozenset({AddChunks, FillColumns}): "Chunks of a copy that was given up may arrive late; they are left out.",
    frozenset({AddChunks, Truncate}): "Chunks were read before the TRUNCATE arrived; they are left out.",
    frozenset({CopyAgain, RecordPublication}): "What the publication left out meanwhile is made up for by the copy.",
}
"""The pairs that may come together, and why. Several operations may if each pair of them may, and none comes twice.

What is not here comes alone. RestartCopy, RewriteFiles, AdvanceCutline, FoldCorrections and RefreshArchive were worked
out beside the stream and may be refused, which must hold up nothing else. AddChunks and CopyAgain: the chunks would be
of the registration that ends with it. AdvanceCutline and ApplyStream: segments that were decoded under the former
cut-line must not be published under the new one."""


def arranged(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """In the order in which they are staged. ValueError for what may not come together: a programming error."""
    found = tuple(operations)
    for operation in found:
        if type(operation) not in ORDER:
            raise ValueError(f"{type(operation).__name__} is no operation on a table")
    for first, second in combinations(found, 2):
        if frozenset({type(first), type(second)}) not in COMBINATIONS:
            names = f"{type(first).__name__} and {type(second).__name__}"
            raise ValueError(f"{names} may not come to one table in one publish")
    return tuple(sorted(found, key=lambda operation: ORDER.index(type(operation))))


def schema_operation(change: TableChange, dropped: Iterable[tuple[int, PartitionBounds]] = ()) -> SchemaOperation:
    """What a change of the table comes to. `dropped`: as FillColumns has it."""
    if change.copy_again:
        # What is copied again is without rows that are gone.
        return CopyAgain(change)
    return FillColumns(change, tuple(dropped)) if change.fills else ChangeColumns(change)
