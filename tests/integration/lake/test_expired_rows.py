"""Rows below the retention line leave the lake: every engine finds exactly the others, in main and in the published
snapshot, and no file is rewritten for that."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.archive_branch import ArchiveBranch
from mirror_pump.lake.commit.expired_rows import RowsBelow
from mirror_pump.lake.commit.row_delta import RowDelta
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.document.snapshot_stats import live_rows
from tests.support.lake_tables import STORAGE, Rows, SmallTable, by_key


def _line(cut: int) -> CutLine:
    return CutLine("id", 1, ColumnType(Kind.LONG), cut)


def _expire(small: SmallTable, line: int) -> None:
    small.commit(RowDelta((), replaces=RowsBelow(_line(line))))


def _files(small: SmallTable, content: DataFileContent) -> list[str]:
    return [entry.data_file.file_path for entry in small.entries() if entry.data_file.content == content]


def _read(location: str, snapshot_id: int | None = None) -> Rows:
    read = StaticTable.from_metadata(location).scan(snapshot_id=snapshot_id).to_arrow()
    return by_key(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True))


def _published(small: SmallTable, branch: ArchiveBranch, cut: int) -> Rows:
    """The published snapshot at the cut-line, without a filter."""
    small.now_ms += 1000
    staged = branch.stage(small.table, _line(cut), small.now_ms)
    small.table = staged.table
    return _read(staged.seam_location)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.further)])
def test_exactly_the_rows_below_the_line_are_gone_whatever_was_committed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    small = SmallTable(tmp_path.as_uri())
    branch = ArchiveBranch(STORAGE)
    model: Rows = {}
    line = expired = 0
    for number in range(60):
        match chance.randrange(7):
            case 0 | 1 | 2:
                keys = chance.sample(range(line, line + 200), 20)
                gone = keys[:10]
                rows: Rows = dict.fromkeys(keys[5:], f"{number}")
                small.commit(RowDelta((small.segment(rows, keys),)))
                model = {key: value for key, value in model.items() if key not in gone} | rows
            case 3 | 4:
                small.convert()
            case 5:
                small.merge()
            case 6:
                line += chance.randrange(60)
                before = small.duckdb()
                former = small.table.metadata_location
                _expire(small, line)
                expired += sum(key < line for key in model)
                model = {key: value for key, value in model.items() if key >= line}
                assert small.duckdb() == model, f"seed {seed}"
                assert _read_duckdb(small, former) == before
    assert expired > 50
    small.convert()
    assert small.duckdb() == small.scanned() == model
    assert _published(small, branch, line + 100) == {key: row for key, row in model.items() if key < line + 100}
    _expire(small, line + 50)
    model = {key: value for key, value in model.items() if key >= line + 50}
    assert small.duckdb() == small.scanned() == model
    assert live_rows(small.table.metadata, small.table.summary) == len(model)


def _read_duckdb(small: SmallTable, location: str) -> Rows:
    """What a reader of an older state of the table finds."""
    table, small.table = small.table, type(small.table).load(location, STORAGE)
    try:
        return small.duckdb()
    finally:
        small.table = table


def test_whole_files_go_by_their_bounds_and_with_them_the_deletes_that_concern_them_alone(tmp_path: Path) -> None:
    small = SmallTable(tmp_path.as_uri())
    for number in range(4):
        small.commit(RowDelta((small.segment(dict.fromkeys(range(number * 10, number * 10 + 10), "a")),)))
    # A conversion makes one position-delete file for the first three files.
    small.commit(RowDelta((small.segment({}, [3, 12, 13, 21]),)))
    small.convert()
    small.commit(RowDelta((small.segment({}, [4, 5]),)))
    small.commit(RowDelta((small.segment({}, [14, 35]),)))
    (path,) = (
        entry.data_file.file_path
        for entry in small.entries()
        if entry.data_file.content == DataFileContent.DATA
        and entry.data_file.lower_bounds.get(1) == (10).to_bytes(8, "little")
    )
    # Reading it would fail.
    (tmp_path / path.removeprefix(f"{tmp_path.as_uri()}/")).unlink()
    assert len(_files(small, DataFileContent.EQUALITY_DELETES)) == 2

    _expire(small, 20)

    kept = {key: "a" for key in range(20, 40) if key not in (21, 35)}
    assert small.duckdb() == kept
    # Two of the data files are left, the placeholders of the deletes, and no row of a delete that hides nothing.
    rows = [
        entry.data_file.record_count for entry in small.entries() if entry.data_file.content == DataFileContent.DATA
    ]
    assert sorted(rows)[-3:] == [0, 10, 10]
    assert len(_files(small, DataFileContent.EQUALITY_DELETES)) == 1
    deleted = [
        entry.data_file.record_count
        for entry in small.entries()
        if entry.data_file.content == DataFileContent.POSITION_DELETES
    ]
    assert deleted == [1]
    small.convert()
    assert small.scanned() == kept
    assert live_rows(small.table.metadata, small.table.summary) == len(kept)
    removed = small.table.metadata.snapshots[-2].summary.entries
    assert removed["deleted-data-files"] == "2"


def test_rows_of_a_spanning_file_are_hidden_once(tmp_path: Path) -> None:
    small = SmallTable(tmp_path.as_uri())
    small.commit(RowDelta((small.segment(dict.fromkeys(range(100), "a")),)))
    small.commit(RowDelta((small.segment({}, [1, 2, 60]),)))
    small.convert()
    _expire(small, 10)
    _expire(small, 50)
    assert small.duckdb() == small.scanned() == {key: "a" for key in range(50, 100) if key != 60}
    assert live_rows(small.table.metadata, small.table.summary) == 49
    hidden = [
        entry.data_file.record_count
        for entry in small.entries()
        if entry.data_file.content == DataFileContent.POSITION_DELETES
    ]
    assert sum(hidden) == 51
    # The last of its rows: it goes, with all that hides its rows.
    _expire(small, 100)
    assert small.duckdb() == {}
    assert not [entry for entry in small.entries() if entry.data_file.record_count]


def test_merges_that_were_computed_before_are_refused_or_follow(tmp_path: Path) -> None:
    """A merge of files that are removed is refused; one of a file with hidden rows hides them in its own file, too."""
    small = SmallTable(tmp_path.as_uri())
    for number in range(40):
        small.commit(RowDelta((small.segment({number: "a", number + 40: "a"}),)))
    merge = small.compute_merge()
    assert merge is not None
    _expire(small, 20)
    small.commit(RowDelta((), replaces=merge))
    assert small.duckdb() == small.scanned() == dict.fromkeys(range(20, 80), "a")
