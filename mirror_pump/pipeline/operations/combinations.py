"""Which operations one publish may combine for a table, and in which order it stages and records them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import TypeAlias

from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.pipeline.operations.add_chunks import AddChunks
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline
from mirror_pump.pipeline.operations.append_changes import AppendChanges
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.change_columns import ChangeColumns
from mirror_pump.pipeline.operations.copy_again import CopyAgain
from mirror_pump.pipeline.operations.expire_rows import ExpireRows
from mirror_pump.pipeline.operations.fill_columns import FillColumns
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.operations.ingest_files import IngestFiles
from mirror_pump.pipeline.operations.operation import Operation
from mirror_pump.pipeline.operations.record_publication import RecordPublication
from mirror_pump.pipeline.operations.refresh_archive import RefreshArchive
from mirror_pump.pipeline.operations.replace_differing import ReplaceDiffering
from mirror_pump.pipeline.operations.restart_copy import RestartCopy
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.pipeline.operations.truncate import Truncate

TableOperation: TypeAlias = (
    AdvanceCutline
    | ExpireRows
    | ChangeColumns
    | FillColumns
    | CopyAgain
    | RecordPublication
    | Truncate
    | RestartCopy
    | RewriteFiles
    | ApplyStream
    | AppendChanges
    | FoldCorrections
    | IngestFiles
    | RefreshArchive
    | AddChunks
    | ReplaceDiffering
)
"""All operations."""

SchemaOperation: TypeAlias = ChangeColumns | FillColumns | CopyAgain
"""The operations that change the table itself. A publish has at most one of them for a table."""

ORDER: tuple[type[Operation], ...] = (
    AdvanceCutline,
    ExpireRows,
    ChangeColumns,
    FillColumns,
    CopyAgain,
    RecordPublication,
    Truncate,
    RestartCopy,
    RewriteFiles,
    ApplyStream,
    AppendChanges,
    FoldCorrections,
    IngestFiles,
    RefreshArchive,
    AddChunks,
    ReplaceDiffering,
)
"""The order in which operations are staged and recorded, regardless of the order in which they are given."""

COMBINATIONS: Mapping[frozenset[type[Operation]], str] = {
    frozenset({Truncate, ApplyStream}): "A batch may hold a TRUNCATE and later changes; earlier changes are left out.",
    frozenset(
        {ChangeColumns, ApplyStream}
    ): "A batch may span a schema change. No segment does, and its files stay readable by field ID.",
    frozenset({FillColumns, ApplyStream}): "As for ChangeColumns. Segments after the change have the new column.",
    frozenset({CopyAgain, ApplyStream}): "Segments after the change apply on top of the new copy.",
    frozenset({ChangeColumns, Truncate}): "One batch may hold both.",
    frozenset({FillColumns, Truncate}): "One batch may hold both. The fill looks for what is left in the files.",
    frozenset({CopyAgain, Truncate}): "One batch may hold both. Either of them empties the table.",
    frozenset({AddChunks, ApplyStream}): "Chunks that were copied in the meantime are published with the next batch.",
    frozenset({AddChunks, ChangeColumns}): "As with ApplyStream: the chunks' files stay readable by field ID.",
    frozenset({AddChunks, FillColumns}): "Chunks of an abandoned copy may arrive late and are left out.",
    frozenset({AddChunks, Truncate}): "The chunks were read before the TRUNCATE arrived and are left out.",
    frozenset({AppendChanges, ApplyStream}): "The feed gets every change of which the table gets the net effect.",
    frozenset({AppendChanges, Truncate}): "The feed has the TRUNCATE, and the changes before it, too.",
    frozenset({AppendChanges, ChangeColumns}): "As with ApplyStream: the feed's files stay readable by field ID.",
    frozenset({AppendChanges, FillColumns}): "The table is not live after it, so the files are left out.",
    frozenset({AppendChanges, CopyAgain}): "As with FillColumns.",
    frozenset({AppendChanges, AddChunks}): "As with FillColumns.",
    frozenset({CopyAgain, RecordPublication}): "The copy makes up for the changes that the publication left out.",
}
"""The pairs of operations that may be combined, and why. More than two may be combined if every pair of them may, and
none occurs twice.

All others come alone. RestartCopy, RewriteFiles, AdvanceCutline, ExpireRows, FoldCorrections, IngestFiles,
ReplaceDiffering and RefreshArchive were computed independently of the stream. They may be refused, which must not hold
up anything else.
AddChunks and CopyAgain are not combined, because the chunks would belong to the registration that CopyAgain ends.
AdvanceCutline and ApplyStream are not combined, because segments that were decoded under the old cut-line must not be
published under the new one."""


def arranged(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations in the order in which they are staged. Raises ValueError, for a programming error, if they may not
    be combined."""
    combined = tuple(operations)
    for operation in combined:
        if type(operation) not in ORDER:
            raise ValueError(f"{type(operation).__name__} is no operation on a table")
    for first, second in combinations(combined, 2):
        if frozenset({type(first), type(second)}) not in COMBINATIONS:
            names = f"{type(first).__name__} and {type(second).__name__}"
            raise ValueError(f"{names} may not come to one table in one publish")
    return tuple(sorted(combined, key=lambda operation: ORDER.index(type(operation))))


def schema_operation(change: TableChange, dropped: Iterable[tuple[int, PartitionBounds]] = ()) -> SchemaOperation:
    """The operation that carries out a change of the table. `dropped`: see FillColumns.dropped."""
    if change.copy_again:
        # The new copy does not contain the dropped rows.
        return CopyAgain(change)
    return FillColumns(change, tuple(dropped)) if change.fills else ChangeColumns(change)
