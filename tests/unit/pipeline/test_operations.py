"""Each operation by itself: what it stages on a registration, and what it records in the catalog."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any, cast, get_args

import numpy as np
import pytest

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.expired_rows import RowsBelow
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.replacement import CopiedFiles, EveryFile, FilesAbove
from mirror_pump.lake.commit.row_delta import BackdatedFile, RowDelta, SegmentFiles
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.model import Lsn, SequenceNumber, SnapshotId, TableState
from mirror_pump.pipeline.operations.add_chunks import AddChunks, CopiedChunk
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline, AdvanceRefused, PartitionFiles
from mirror_pump.pipeline.operations.append_changes import AppendChanges
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.change_columns import ChangeColumns
from mirror_pump.pipeline.operations.combinations import COMBINATIONS, ORDER, TableOperation, schema_operation
from mirror_pump.pipeline.operations.copy_again import CopyAgain
from mirror_pump.pipeline.operations.expire_rows import ExpireRows, ExpiryRefused
from mirror_pump.pipeline.operations.fill_columns import FillColumns
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.operations.ingest_files import IngestFiles
from mirror_pump.pipeline.operations.operation import Operation, Recording, SegmentChange, TablePlan
from mirror_pump.pipeline.operations.record_publication import RecordPublication
from mirror_pump.pipeline.operations.refresh_archive import RefreshArchive
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.replace_differing import ReplaceDiffering
from mirror_pump.pipeline.operations.requests import TableRequest
from mirror_pump.pipeline.operations.restart_copy import RestartCopy
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.truncate import Truncate
from mirror_pump.pipeline.publish.staging import fitted, planned
from tests.unit.pipeline.operations_support import (
    COPYING,
    FILLING,
    LIVE,
    TABLE,
    TIER,
    WITH_RETENTION,
    RecordingCursor,
    change,
    segment,
    written_file,
)

REWRITE = FileRewrite(frozenset({"deletes"}), frozenset(), {}, 4, complete=True)
CHUNK = CopiedChunk(TABLE.generation, 5, 10, (written_file("chunk"),), frozenset({9}))
FOLD = FoldCorrections(segment("folded"), (("1", 8),), cut=100)
INGEST = IngestFiles("1", (written_file("old rows"),), {}, {}, 100, (), frozenset({9}))
BOUNDS = PartitionBounds(1, 10, 20)
EACH: dict[type[Operation], Operation] = {
    AdvanceCutline: AdvanceCutline("p0", 200),
    ExpireRows: ExpireRows(50),
    ChangeColumns: ChangeColumns(change()),
    FillColumns: FillColumns(change(fills=True)),
    CopyAgain: CopyAgain(change(again=True)),
    RecordPublication: RecordPublication(),
    Truncate: Truncate(),
    RestartCopy: RestartCopy(),
    RewriteFiles: RewriteFiles(REWRITE),
    ApplyStream: ApplyStream((segment("a"),)),
    AppendChanges: AppendChanges((written_file("changes"),)),
    FoldCorrections: FOLD,
    IngestFiles: INGEST,
    RefreshArchive: RefreshArchive(),
    AddChunks: AddChunks((CHUNK,)),
    ReplaceDiffering: ReplaceDiffering(TABLE.generation, (written_file("differing"),), 10, frozenset({9})),
}


def plan(registration: Registration, *operations: Operation) -> TablePlan:
    table = replace(TABLE, tier=registration.tier)
    return planned(TableRequest(table, cast("tuple[TableOperation, ...]", operations)), registration)


def recorded(operation: Operation, registration: Registration, archive: StagedArchive | None = None) -> RecordingCursor:
    """What the operation alone records in the catalog; the base sequence is 30."""
    cursor = RecordingCursor(answer=(None,))
    recording = Recording(
        table=TABLE,
        registration=registration,
        state=plan(registration, operation).state,
        slot="mirror",
        frontier=Lsn(1000),
        base_sequence=30,
        archive=archive,
    )
    operation.lock(cursor.as_cursor, recording)
    operation.describe(cursor.as_cursor, recording)
    operation.complete(cursor.as_cursor, recording)
    return cursor


def archive() -> StagedArchive:
    return StagedArchive(cast("Any", None), None, "", SnapshotId(77), SequenceNumber(31), (), "file:///seam")


# What may be combined


def test_the_order_and_the_union_name_the_same_operations() -> None:
    assert set(ORDER) == set(get_args(TableOperation)) == EACH.keys()
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize(("first", "second"), list(combinations(ORDER, 2)), ids=lambda kind: kind.__name__)
def test_a_pair_comes_together_if_and_only_if_the_table_says_so(
    first: type[Operation], second: type[Operation]
) -> None:
    operations = cast("tuple[TableOperation, ...]", (EACH[second], EACH[first]))
    if frozenset({first, second}) in COMBINATIONS:
        assert TableRequest(TABLE, operations).operations == (EACH[first], EACH[second])
    else:
        with pytest.raises(ValueError, match="may not come to one table"):
            TableRequest(TABLE, operations)


@pytest.mark.parametrize("kind", ORDER, ids=lambda kind: kind.__name__)
def test_no_operation_comes_twice(kind: type[Operation]) -> None:
    with pytest.raises(ValueError, match="may not come to one table"):
        TableRequest(TABLE, cast("tuple[TableOperation, ...]", (EACH[kind], EACH[kind])))


def test_nothing_else_is_an_operation() -> None:
    with pytest.raises(ValueError, match="no operation"):
        TableRequest(TABLE, cast("Any", (Operation(),)))


def test_every_operation_names_the_files_that_were_written_for_it() -> None:
    nowhere = np.zeros(0, np.int64)
    merged = MergedFile(written_file("merged"), 4, (), nowhere.astype(np.int32), nowhere)
    rewrite = RewriteFiles(replace(REWRITE, merged=(merged,)))
    assert rewrite.files == ("file:///lake/merged",)
    named = {kind: operation.files for kind, operation in EACH.items() if operation.files}
    assert named == {
        ApplyStream: ("file:///lake/a",),
        AppendChanges: ("file:///lake/changes",),
        FoldCorrections: ("file:///lake/folded",),
        IngestFiles: ("file:///lake/old rows",),
        AddChunks: ("file:///lake/chunk",),
        ReplaceDiffering: ("file:///lake/differing",),
    }


# What comes too late


def test_what_was_read_before_a_truncate_is_left_out_with_it() -> None:
    table_request = TableRequest(TABLE, (AddChunks((CHUNK,)), Truncate()))
    assert fitted(table_request, COPYING) == (TableRequest(TABLE, (Truncate(),)), [])
    assert fitted(TableRequest(TABLE, (AddChunks((CHUNK,)),)), COPYING)[0].operations == (AddChunks((CHUNK,)),)


@pytest.mark.parametrize("operation", [RewriteFiles(REWRITE), FOLD], ids=lambda operation: type(operation).__name__)
def test_a_caller_that_waits_for_an_operation_learns_that_it_is_left_out(operation: TableOperation) -> None:
    assert fitted(TableRequest(TABLE, (operation,)), COPYING) == (TableRequest(TABLE), [TABLE.table_id])


def test_a_stale_restart_is_left_out_silently() -> None:
    began_again = replace(COPYING, generation=TABLE.generation + 1)
    assert fitted(TableRequest(TABLE, (RestartCopy(),)), began_again) == (TableRequest(TABLE), [])


# The stream, TRUNCATE and copies


def test_stream_changes_keep_their_order_and_their_condition() -> None:
    operation = ApplyStream((segment("a"), segment("b")), frozenset({4}), Lsn(700))
    staged = plan(COPYING, operation)
    assert staged.segments == operation.segments
    assert staged.raw_text_columns == {4}
    assert staged.writes_snapshot
    assert staged.state is TableState.COPYING
    assert (staged.waits_beyond(Lsn(699)), staged.waits_beyond(Lsn(700))) == (True, False)
    assert recorded(operation, COPYING).executed == []


def test_an_empty_batch_writes_no_snapshot() -> None:
    assert not plan(LIVE, ApplyStream()).writes_snapshot
    assert not plan(LIVE).writes_snapshot


def test_truncate_removes_every_file_of_a_live_table_and_leaves_it_live() -> None:
    staged = plan(LIVE, Truncate(), ApplyStream((segment("a"),)))
    assert staged.replaces == EveryFile()
    assert staged.empties
    assert (staged.state, staged.starts_copy, staged.forgets_index) == (TableState.LIVE, False, False)
    assert recorded(Truncate(), LIVE).executed == []


def test_truncate_during_a_copy_begins_the_copy_again() -> None:
    staged = plan(COPYING, Truncate())
    assert staged.starts_copy
    assert staged.waits_beyond(Lsn(2**60))
    assert recorded(Truncate(), COPYING).names == ["forget_chunks"]


@pytest.mark.parametrize("operation", [Truncate(), CopyAgain(change(again=True))], ids=["truncate", "copy-again"])
def test_rows_below_the_cut_line_stay(operation: Operation) -> None:
    staged = plan(WITH_RETENTION, operation)
    assert isinstance(staged.replaces, FilesAbove)
    assert staged.replaces.cutline.cut == TIER.cut
    assert staged.keeps_below
    assert staged.forgets_index


def test_chunks_take_their_place_at_the_start_snapshot() -> None:
    operation = AddChunks((CHUNK, replace(CHUNK, chunk_no=6, files=(), raw_text_columns=frozenset())))
    staged = plan(COPYING, operation)
    assert staged.backdated == (BackdatedFile(CHUNK.files[0], COPYING.data_sequence_number),)
    assert staged.raw_text_columns == {9}
    cursor = recorded(operation, COPYING)
    assert cursor.names == ["chunk_done", "chunk_done", "copy_progress"]
    assert [parameters.get("chunk_no") for _, parameters in cursor.executed] == [5, 6, None]


def test_chunks_without_rows_write_no_snapshot() -> None:
    assert not plan(COPYING, AddChunks((replace(CHUNK, files=()),))).writes_snapshot


def test_chunks_of_a_copy_that_began_again_are_left_out() -> None:
    old = replace(CHUNK, generation=TABLE.generation - 1)
    assert AddChunks((old, CHUNK)).fitting(TABLE, COPYING) == AddChunks((CHUNK,))
    assert AddChunks((old,)).fitting(TABLE, COPYING) is None
    assert AddChunks in Truncate.supersedes


def test_a_copy_begins_again_once_for_each_generation() -> None:
    staged = plan(COPYING, RestartCopy())
    assert staged.replaces == CopiedFiles(COPYING.data_sequence_number)
    assert staged.starts_copy
    assert not staged.empties, "what the stream brought stays"
    assert recorded(RestartCopy(), COPYING).names == ["forget_chunks"]
    assert RestartCopy().fitting(TABLE, COPYING) == RestartCopy()
    assert RestartCopy().fitting(TABLE, replace(COPYING, generation=TABLE.generation + 1)) is None
    assert RestartCopy().fitting(TABLE, LIVE) is None, "its copy is complete"


# Schema changes


def test_what_a_change_of_the_table_comes_to() -> None:
    dropped = [(1, BOUNDS)]
    assert schema_operation(change()) == ChangeColumns(change())
    assert schema_operation(change(fills=True), dropped) == FillColumns(change(fills=True), ((1, BOUNDS),))
    again = change(again=True, fills=True)
    assert schema_operation(again, dropped) == CopyAgain(again)


@pytest.mark.parametrize("registration", [LIVE, COPYING, FILLING], ids=lambda known: known.state.value)
def test_other_columns_leave_the_state(registration: Registration) -> None:
    staged = plan(registration, ChangeColumns(change()))
    assert (staged.changes_columns, staged.writes_snapshot) == (True, False)
    assert staged.state is registration.state
    ((name, parameters),) = recorded(ChangeColumns(change()), registration).executed
    assert name == "store"
    assert (parameters["former"], parameters["state"]) == (registration.state.value, registration.state.value)


def test_a_fill_writes_a_snapshot_and_says_which_rows_are_gone() -> None:
    operation = FillColumns(change(fills=True), ((2, BOUNDS),))
    staged = plan(LIVE, operation)
    assert staged.state is TableState.FILLING
    assert staged.writes_snapshot
    assert staged.forgets_index, "keys of rows that are gone may be there twice"
    assert staged.waits_beyond(Lsn(2**60))
    assert [rows.sequence_number for rows in operation.dropped_rows(30)] == [32]
    ((name, parameters),) = recorded(operation, LIVE).executed
    assert (name, parameters["former"], parameters["state"]) == ("store", "live", "filling")
    assert len(parameters["dropped_rows"].obj) == 1


def test_a_table_that_is_copied_stays_so_and_is_filled_behind_its_copy() -> None:
    """With heap retention: files below the cut-line are not copied, and lack the new column's value."""
    staged = plan(COPYING, FillColumns(change(fills=True)))
    assert staged.state is TableState.COPYING
    assert staged.fills


def test_a_table_that_failed_cannot_be_filled() -> None:
    with pytest.raises(ValueError, match="failed"):
        plan(replace(LIVE, state=TableState.FAILED), FillColumns(change(fills=True)))


@pytest.mark.parametrize("registration", [LIVE, COPYING, FILLING], ids=lambda known: known.state.value)
def test_a_table_is_copied_again_from_every_state(registration: Registration) -> None:
    staged = plan(registration, CopyAgain(change(again=True)), Truncate(), ApplyStream((segment("a"),)))
    assert staged.state is TableState.COPYING
    assert staged.replaces == EveryFile()
    assert staged.starts_copy
    cursor = recorded(CopyAgain(change(again=True)), registration)
    assert cursor.names == ["store", "forget_chunks"]
    assert cursor.executed[0][1]["state"] == "copying"
    assert cursor.executed[0][1]["start_lsn"] == 90


def test_a_state_that_changed_meanwhile_is_a_conflict() -> None:
    cursor = RecordingCursor()
    cursor.rowcount = 0
    recording = Recording(TABLE, LIVE, TableState.LIVE, "mirror", Lsn(1), 30, None)
    with pytest.raises(CommitConflict):
        ChangeColumns(change()).describe(cursor.as_cursor, recording)


def test_the_publication_is_recorded_for_the_table() -> None:
    ((name, parameters),) = recorded(RecordPublication(), LIVE).executed
    assert (name, parameters["table_ids"]) == ("record", [TABLE.table_id])


def test_rows_that_are_gone_again_are_not_counted_below_zero() -> None:
    """Of two keys that both sides had, the heap has deleted one until its rows were copied."""
    replaced = replace(ReplaceDiffering(TABLE.generation, (written_file("differing"),), 10), different=2)
    compared = recorded(replaced, COPYING).executed[0][1]["compared"].obj
    assert (compared["missing"], compared["extra"], compared["different"]) == (0, 0, 2)


# Work that is not part of the stream


def test_files_are_not_rewritten_under_a_copy_or_a_foreign_rewrite() -> None:
    operation = RewriteFiles(REWRITE)
    assert plan(LIVE, operation).replaces == REWRITE
    assert not plan(LIVE, operation).empties
    assert operation.fitting(TABLE, LIVE) == operation
    assert operation.fitting(TABLE, FILLING) == operation, "what is staged for a fill no other engine sees"
    assert operation.fitting(TABLE, COPYING) is None
    assert operation.fitting(TABLE, replace(LIVE, rewrite_since=3)) is None
    assert operation.reports_refusal


def test_the_cut_line_moves_only_while_readers_see_commits() -> None:
    operation = AdvanceCutline("p0", 200)
    staged = plan(WITH_RETENTION, operation)
    assert (staged.archive_due, staged.cut, staged.writes_snapshot) == (True, 200, False)
    for registration in (COPYING, FILLING, replace(WITH_RETENTION, staged=True)):
        with pytest.raises(AdvanceRefused, match="being copied"):
            plan(registration, operation)


def test_a_tiered_partition_comes_in_two_segments_with_its_cut_line() -> None:
    """The files of its chunks stay when the publish fails: they are in the catalog."""
    rows, deletes = written_file("chunk"), written_file("deletes", FileContent.EQUALITY_DELETES)
    changed = SegmentFiles((written_file("changed"),), (deletes,))
    operation = AdvanceCutline("p0", 200, PartitionFiles((rows,), SegmentChange(changed), (3, 5), frozenset({9})))
    staged = plan(WITH_RETENTION, operation)
    assert [segment.files for segment in staged.segments] == [SegmentFiles((rows,), ()), changed]
    assert (staged.archive_due, staged.cut, staged.forgets_index) == (True, 200, True)
    assert staged.raw_text_columns == {9}
    assert set(operation.files) == {"file:///lake/changed", "file:///lake/deletes"}
    empty = AdvanceCutline("p0", 200, PartitionFiles((), None, (), frozenset()))
    assert not plan(WITH_RETENTION, empty).writes_snapshot
    assert empty.files == ()


def test_rows_expire_only_while_readers_see_commits_and_nobody_rewrites_files() -> None:
    staged = plan(WITH_RETENTION, ExpireRows(50))
    assert isinstance(staged.replaces, RowsBelow)
    assert (staged.replaces.line.cut, staged.archive_due, staged.cut) == (50, True, None)
    assert (staged.empties, staged.forgets_index, staged.writes_snapshot) == (False, True, True)
    for registration in (
        COPYING,
        FILLING,
        replace(WITH_RETENTION, staged=True),
        replace(WITH_RETENTION, rewrite_since=3),
    ):
        with pytest.raises(ExpiryRefused, match=r"is being copied|is rewriting"):
            plan(registration, ExpireRows(50))


def test_a_fold_from_before_the_line_moved_is_left_out() -> None:
    after = replace(WITH_RETENTION, tier=replace(TIER, line=50))
    assert FOLD.fitting(TABLE, WITH_RETENTION) == FOLD
    assert FOLD.fitting(TABLE, after) is None
    assert replace(FOLD, line=50).fitting(TABLE, after) == replace(FOLD, line=50)


def test_ingested_files_are_for_readers_who_see_commits_and_for_the_cut_line_that_divided_the_rows() -> None:
    assert INGEST.fitting(TABLE, WITH_RETENTION) == INGEST
    assert INGEST.fitting(TABLE, replace(WITH_RETENTION, tier=replace(TIER, cut=150))) == INGEST, "it only grows"
    assert INGEST.fitting(TABLE, replace(WITH_RETENTION, tier=replace(TIER, cut=99))) is None
    assert INGEST.fitting(TABLE, LIVE) is None
    for registration in (COPYING, FILLING):
        assert INGEST.fitting(TABLE, replace(registration, tier=TIER)) is None
    # A column that the files lack, and that old rows have a value for.
    assert INGEST.fitting(TABLE, replace(WITH_RETENTION, initial_fields=frozenset({77}))) is None


def test_the_cut_line_is_moved_before_the_registration_is_locked() -> None:
    cursor = RecordingCursor(answer=(None,))
    recording = Recording(TABLE, WITH_RETENTION, TableState.LIVE, "mirror", Lsn(1000), 30, None)
    AdvanceCutline("p0", 200).lock(cursor.as_cursor, recording)
    assert "advance_cutline" in cursor.names
    assert dict(cursor.executed[cursor.names.index("advance_cutline")][1])["frontier"] == 1000


@pytest.mark.parametrize("answer", [None, ("a reader has pinned it",)])
def test_the_reason_why_the_cutline_does_not_move_is_returned(answer: tuple[Any, ...] | None) -> None:
    recording = Recording(TABLE, WITH_RETENTION, TableState.LIVE, "mirror", Lsn(1000), 30, None)
    with pytest.raises(AdvanceRefused, match=r"pinned|not registered"):
        AdvanceCutline("p0", 200).lock(RecordingCursor(answer).as_cursor, recording)


def test_a_fold_is_a_segment_and_rebuilds_the_archive_branch() -> None:
    staged = plan(WITH_RETENTION, FOLD)
    assert staged.segments == (FOLD.segment,)
    assert staged.archive_due
    cursor = recorded(FOLD, WITH_RETENTION, archive())
    assert cursor.names == ["mark_folded", "journal"]
    assert cursor.executed[0][1]["sequence"] == 31
    assert (cursor.executed[0][1]["pks"], cursor.executed[0][1]["versions"]) == (["1"], [8])


def test_a_fold_waits_for_readers_and_for_its_cut_line() -> None:
    assert FOLD.fitting(TABLE, WITH_RETENTION) == FOLD
    assert FOLD.fitting(TABLE, replace(WITH_RETENTION, tier=replace(TIER, cut=150))) == FOLD, "the cut-line only grows"
    assert FOLD.fitting(TABLE, replace(WITH_RETENTION, tier=replace(TIER, cut=99))) is None
    assert FOLD.fitting(TABLE, replace(WITH_RETENTION, state=TableState.COPYING)) is None
    assert FOLD.fitting(TABLE, LIVE) is None
    assert FOLD.reports_refusal


def test_the_archive_branch_is_rebuilt_without_a_snapshot_of_main() -> None:
    staged = plan(WITH_RETENTION, RefreshArchive())
    assert (staged.archive_due, staged.cut, staged.writes_snapshot) == (True, None, False)


# The lake's commit


def test_a_merge_goes_alone_into_a_commit() -> None:
    chunk = BackdatedFile(written_file("chunk"), 1)
    with pytest.raises(ValueError, match="alone"):
        RowDelta((), backdated=(chunk,), replaces=REWRITE)
    RowDelta((), replaces=REWRITE)
