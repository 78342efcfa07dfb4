"""Rewrites on a fork of a table land on whatever was committed meanwhile, or are refused: properties against a dict.

The rewrite is made as an engine makes it: of any of the data files, to a file with the sequence number at which it
began. The table that it lands on is read by DuckDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.fork_difference import fork_difference
from mirror_pump.lake.commit.forked_rewrite import ForkedRewrite
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.commit.table_head import TableHead, changed_rows
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.next_metadata import with_snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, summarise
from mirror_pump.lake.document.snapshot_thinning import DEFAULT_RETENTION
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.manifests.manifests import ManifestWriter
from mirror_pump.lake.storage import local_path, write_all
from tests.support.lake_tables import STORAGE, Rows, SmallTable

KEYS = 12


@dataclass(frozen=True)
class PumpCommit:
    """What the pump commits: the rows of these keys are replaced, or deleted."""

    put: frozenset[int]
    delete: frozenset[int]
    merge: bool = False
    """Before that, merge small files, as a pump does that does not know of the rewrite."""
    by_position: bool = False
    """Delete by position, as such a pump does."""


_keys = st.frozensets(st.integers(0, KEYS - 1), max_size=5)
_quiet = st.builds(PumpCommit, put=_keys, delete=_keys)
_any = st.builds(PumpCommit, put=_keys, delete=_keys, merge=st.booleans(), by_position=st.booleans())


class ForkedTable:
    """A table, and the rows that it has to have."""

    def __init__(self, location: str, format_version: int) -> None:
        self.table = SmallTable(location, format_version=format_version)
        self.rows: Rows = {}
        self._version = 0

    def commit(self, commit: PumpCommit) -> None:
        table = self.table
        if commit.merge:
            table.convert()
            table.merge()
        self._version += 1
        gone = commit.delete | commit.put
        new: Rows = {key: f"{key} in {self._version}" for key in commit.put}
        if commit.by_position:
            places = _places(table.table, self.rows, gone)
            segments = (table.segment(new),) if new else ()
            table.commit(RowDelta(segments, hidden=places))
        else:
            table.commit(RowDelta((table.segment(new, sorted(gone)),)))
        self.rows = {key: value for key, value in self.rows.items() if key not in gone} | new


def _places(
    table: LakeTable, rows: Rows, keys: frozenset[int]
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Where the rows of these keys are, by the URI of the data file."""
    found: dict[str, list[int]] = {}
    for file in table.live_data_files():
        for place, key, value in _content(file):
            if key in keys and rows.get(key) == value:
                found.setdefault(file.path, []).append(place)
    return {path: np.array(places, np.int64) for path, places in found.items()}


def _content(file: LiveFile) -> list[tuple[int, int, str | None]]:
    read = pq.read_table(local_path(file.path))
    return list(zip(range(read.num_rows), read["id"].to_pylist(), read["v"].to_pylist(), strict=True))


def _forked(model: ForkedTable, chosen: Sequence[bool], *, number: int | None = None, lose: bool = False) -> LakeTable:
    """The fork after another engine has rewritten the chosen data files of the present state. `lose`: and lost one."""
    table, base = model.table, model.table.table
    files = [file for file, take in zip(base.live_data_files(), chosen, strict=False) if take]
    rows = {key: value for file in files for _, key, value in _content(file) if model.rows.get(key) == value}
    if lose:
        rows.popitem()
    replaced = {file.path for file in files}
    made: tuple[WrittenFile, ...] = table.data_files(rows) if rows else ()
    writer = ManifestWriter(base.metadata, sequence_number=base.sequence_number + 1)
    removal = writer.remove(base.manifests, STORAGE, lambda entry: entry.path in replaced, lambda _: True)
    own_number = base.sequence_number if number is None else number
    new = {ManifestContent.DATA: [(file, own_number) for file in made]}
    manifests = (*writer.next(removal.untouched, new, STORAGE), *removal.rewritten)
    summary = summarise(FileCounts.of(made), removal.removed, base.summary, {}, only_rewrites=True)
    snapshot, _ = writer.snapshot(base.metadata.current_snapshot, manifests, summary, base.metadata.last_updated_ms)
    metadata = with_snapshot(base.metadata, snapshot, base.metadata_location, (), DEFAULT_RETENTION)
    location = next_location(base.metadata, base.metadata_location)
    write_all([*writer.files, (location, metadata.to_json())], STORAGE)
    return LakeTable.load(location, STORAGE)


def _begun(location: str, before: Sequence[PumpCommit], format_version: int) -> ForkedTable:
    model = ForkedTable(location, format_version)
    model.commit(PumpCommit(frozenset(range(KEYS)), frozenset()))
    for commit in before:
        model.commit(commit)
    return model


def _difference(base: LakeTable, fork: LakeTable, chosen: Sequence[bool]) -> ForkedRewrite:
    everything = all(chosen[: len(base.live_data_files())])
    change = fork_difference(base, fork, drop_deletes=everything)
    assert change is not None
    return change


_examples = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True
)
_chosen = st.lists(st.booleans(), min_size=39, max_size=39).map(lambda drawn: [True, *drawn]) | st.just([True] * 40)
"""For each data file whether it is rewritten: the first one always."""
_versions = st.sampled_from((2, 3))
"""The table's format version."""


@_examples
@given(
    before=st.lists(_any, max_size=6),
    meanwhile=st.lists(_quiet, max_size=6),
    chosen=_chosen,
    looks=st.integers(0, 6),
    version=_versions,
)
def test_a_rewrite_lands_on_what_a_pump_that_knows_of_it_commits(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[PumpCommit],
    meanwhile: list[PumpCommit],
    chosen: list[bool],
    looks: int,
    version: int,
) -> None:
    """`looks`: commits after which the rewrite is checked against the state of then, as before the lock is taken."""
    model = _begun(tmp_path_factory.mktemp("lake").as_uri() + "/public/t", before, version)
    base = model.table.table
    fork = _forked(model, chosen)
    change = _difference(base, fork, chosen)
    for number, commit in enumerate(meanwhile):
        model.commit(commit)
        if number == looks:
            change = change.checked(model.table.table.manifests, STORAGE)
    head = TableHead.of(model.table.table)
    model.table.commit(RowDelta((), replaces=change), keep=frozenset(_ids(model.table.table)))
    assert model.table.duckdb() == model.rows
    assert changed_rows(head, model.table.table, ()) is None, "another pump would undo it"
    # And what comes after it finds its rows.
    for commit in (
        PumpCommit(frozenset({1, 5}), frozenset({2, 7})),
        PumpCommit(frozenset(), frozenset({0, 11}), merge=True),
    ):
        model.commit(commit)
    assert model.table.duckdb() == model.rows


@pytest.mark.further
@_examples
@given(
    before=st.lists(_any, max_size=5),
    meanwhile=st.lists(_any, min_size=1, max_size=5),
    chosen=_chosen,
    version=_versions,
)
def test_whatever_is_committed_a_rewrite_loses_no_row_and_brings_none_back(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[PumpCommit],
    meanwhile: list[PumpCommit],
    chosen: list[bool],
    version: int,
) -> None:
    """By a pump that does not know of the rewrite, too: it fits, or it is refused."""
    model = _begun(tmp_path_factory.mktemp("lake").as_uri() + "/public/t", before, version)
    base = model.table.table
    fork = _forked(model, chosen)
    change = _difference(base, fork, chosen)
    for commit in meanwhile:
        model.commit(commit)
    state = model.table.table
    try:
        model.table.commit(RowDelta((), replaces=change))
    except FileRewriteSuperseded:
        assert model.table.table is state
        assert any(commit.merge or commit.by_position for commit in meanwhile), "the pump did nothing that it must not"
    assert model.table.duckdb() == model.rows


def _ids(table: LakeTable) -> list[int]:
    return [int(snapshot.snapshot_id) for snapshot in table.metadata.snapshots]


def test_a_position_delete_of_a_rewritten_row_is_refused_in_time_and_too_late(tmp_path: object) -> None:
    model = _begun(f"file://{tmp_path}/public/t", [], 2)
    change = _difference(model.table.table, _forked(model, [True] * 40), [True] * 40)
    model.commit(PumpCommit(frozenset(), frozenset({3}), by_position=True))
    with pytest.raises(FileRewriteSuperseded, match="deleted by position"):
        change.checked(model.table.table.manifests, STORAGE)
    with pytest.raises(FileRewriteSuperseded, match="deleted by position"):
        model.table.commit(RowDelta((), replaces=change))
    assert model.table.duckdb() == model.rows


def test_a_fork_that_is_no_rewrite_is_refused(tmp_path: object) -> None:
    model = _begun(f"file://{tmp_path}/public/t", [], 2)
    base = model.table.table
    wrong_number = _forked(model, [True] * 40, number=base.sequence_number + 1)
    with pytest.raises(LakeError, match="sequence number"):
        fork_difference(base, wrong_number, drop_deletes=True)
    model.commit(PumpCommit(frozenset({1}), frozenset({2})))
    with pytest.raises(LakeError, match="changed rows"):
        fork_difference(base, model.table.table, drop_deletes=True)
    assert fork_difference(base, replace(base), drop_deletes=False) is None


def test_the_counts_show_a_rewrite_that_lost_rows(tmp_path: object) -> None:
    """The last safeguard before a rewrite lands: without deletes, every row has to be there."""
    model = ForkedTable(f"file://{tmp_path}/public/t", 2)
    model.rows = dict.fromkeys(range(KEYS), "new")
    model.table.commit(RowDelta((SegmentFiles(model.table.data_files(model.rows), ()),)))
    head = TableHead.of(model.table.table)
    change = _difference(model.table.table, _forked(model, [True] * 40, lose=True), [True] * 40)
    staged = model.table.table.stage(RowDelta((), replaces=change), model.table.now_ms)
    assert not head.may_be_rewritten_as(TableHead.of(staged.table))
