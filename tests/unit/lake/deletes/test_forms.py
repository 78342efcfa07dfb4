"""The forms of position deletes: what each writes and which files wait to be merged, and that no other room chooses."""

from __future__ import annotations

import re
import weakref
from pathlib import Path

import numpy as np
import pytest

from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.deletes.delete_form import (
    OWN_POSITIONS,
    Hiding,
    MergeScope,
    PresentFiles,
    RowsToHide,
)
from mirror_pump.lake.deletes.forms import form_of
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.deletes.position_files import FULL_POSITIONS
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID, ROW_GROUP_ROWS, Positions
from mirror_pump.lake.storage import StorageOptions
from tests.support.position_delete_files import write_position_deletes

STORAGE = StorageOptions(fsync=False)
PACKAGE = Path(__file__).parents[4] / "mirror_pump"
FILES, VECTORS = form_of(2), form_of(3)
NOTHING = RowsToHide({}, {})


def hiding(
    rows: dict[str, Positions], partitions: dict[str, PartitionTuple] | None = None, own: int | None = None
) -> Hiding:
    base = PresentFiles((), "file:///lake/t", STORAGE)
    replaced = RowsToHide(rows, partitions or {}, own)
    return FILES.of_commit(base, NOTHING, replaced, (), frozenset)


def deletes(name: str, records: int, about: str | None = None, partition: PartitionTuple = ()) -> LiveFile:
    """A position-delete file of one data file, or of several."""
    low, high = (about, about) if about else ("a", "z")
    bounds = {PATH_ID: low.encode()}, {PATH_ID: high.encode()}
    return LiveFile(FileContent.POSITION_DELETES, name, 5, "PARQUET", records, 100, (), *bounds, partition)


def data_file(path: str, records: int) -> WrittenFile:
    return WrittenFile(FileContent.DATA, path, records, 100, {}, {}, {}, {}, {})


def scope(*positions: LiveFile, replaced: tuple[PartitionTuple, ...] = (), on_its_own: bool = True) -> MergeScope:
    return MergeScope(positions, {"a", "b"}, replaced, crowded=False, on_its_own=on_its_own, fanout=2)


def test_one_file_for_each_partition_and_one_for_each_data_file_with_many_rows() -> None:
    many = np.arange(100)
    rows = {
        "file:///a": many[:3],
        "file:///b": many[:2],
        "file:///c": many,
        "file:///d": many[:1],
        "file:///e": many[:0],
    }
    partitions: dict[str, PartitionTuple] = {
        "file:///a": (0,), "file:///b": (10,), "file:///c": (10,), "file:///d": (0,), "file:///e": (20,)
    }  # fmt: skip

    def written(own: int | None) -> list[tuple[PartitionTuple, int, str | None]]:
        files = hiding(rows, partitions, own).files
        return [(file.partition, file.record_count, file.referenced_data_file) for file in files]

    assert written(50) == [((0,), 4, None), ((10,), 100, "file:///c"), ((10,), 2, "file:///b")]
    assert written(None) == [((0,), 4, None), ((10,), 102, None)]
    assert hiding({}).files == ()


class CountedNumbers(HiddenRows):
    """Fails if many files' rows are numbers at a time."""

    __slots__ = ("_made",)
    _made: list[weakref.ReferenceType[Positions]]

    def __getitem__(self, path: str) -> Positions:
        positions = super().__getitem__(path)
        made = [numbers for numbers in getattr(self, "_made", []) if numbers() is not None]
        self._made = [*made, weakref.ref(positions)]
        assert len(self._made) < 4, "a commit has all of its rows in memory as numbers"
        return positions


def test_of_many_hidden_rows_those_of_few_files_are_numbers_at_a_time() -> None:
    group = np.arange(ROW_GROUP_ROWS)
    rows = CountedNumbers.of({f"file:///{name}": group for name in "abcdef"})
    base = PresentFiles((), "file:///lake/t", STORAGE)
    for form in (FILES, VECTORS):
        added = [(data_file(path, len(group) + 1), 1) for path in rows]
        for own in (None, OWN_POSITIONS):
            result = form.of_commit(base, NOTHING, RowsToHide(rows, {}, own), added, frozenset)
            assert sum(file.record_count for file in result.files) == 6 * len(group)
    assert HiddenRows.of(rows) is rows


def test_what_a_replacement_hides_was_in_the_table_before() -> None:
    result = hiding({"file:///a": np.array([1, 2])})
    assert result.rewritten_bytes == sum(len(content) for _, content in result.contents) > 0


def test_which_position_delete_files_wait() -> None:
    own, more = deletes("own", OWN_POSITIONS, "a"), deletes("more", OWN_POSITIONS, "a")
    shared, gone = deletes("shared", 9), deletes("gone", 9, "gone")
    assert FILES.waiting(scope(own, gone)).files == ()
    assert FILES.waiting(scope(own, gone)).dangling == {"gone"}
    assert FILES.waiting(scope(own, more)).files == ("own", "more"), "two of one data file are merged"
    merging = FILES.waiting(scope(own, shared, replaced=((),), on_its_own=False))
    assert [*merging.files, *merging.relied_on] == 2 * ["shared"], "it may name rows of a file that goes"
    full = deletes("full", FULL_POSITIONS, "a")
    assert FILES.waiting(scope(full, full)).files == ()


def test_a_merge_of_position_deletes_takes_no_more_than_a_commit_encodes_soon() -> None:
    halves = [deletes(f"half {number}", FULL_POSITIONS // 2 + 1) for number in range(4)]
    assert len(FILES.waiting(scope(*halves)).files) == 2
    each = [deletes(f"own {number}", FULL_POSITIONS // 2 + 1, "a") for number in range(4)]
    assert len(FILES.waiting(scope(*each)).files) == 2
    assert len(VECTORS.waiting(scope(*each)).files) == 1


def test_vectors_take_the_place_of_files_from_before_an_upgrade() -> None:
    own, gone = deletes("own", 5, "a"), deletes("gone", 5, "gone")
    result = VECTORS.waiting(scope(own, gone))
    assert result.files == ("own", "gone")
    assert result.dangling == frozenset()
    assert result.relied_on == frozenset()
    assert VECTORS.waiting(scope(own, on_its_own=False)).files == ()


def test_hidden_rows_are_the_same_from_files_and_in_memory(warehouse: str) -> None:
    rows = {"file:///a": np.array([3, 1]), "file:///b": np.array([7])}
    hidden = HiddenRows.of(rows | {"file:///none": np.zeros(0, np.int64)})
    file: WrittenFile = write_position_deletes(
        {path: np.sort(positions) for path, positions in rows.items()}, f"{warehouse}/t", STORAGE
    )
    assert HiddenRows.read([file.path], rows.keys(), STORAGE) == hidden
    assert list(hidden) == ["file:///a", "file:///b"]
    assert (hidden["file:///a"].tolist(), hidden.rows) == ([1, 3], 3)
    assert hidden.without(HiddenRows.of({"file:///a": np.array([1]), "file:///b": np.array([7])})) == HiddenRows.of({
        "file:///a": np.array([3])
    })  # fmt: skip
    assert hidden.of_files({"file:///b", "file:///x"}).rows == 1


@pytest.mark.parametrize("room", ["lake/commit", "lake/contents", "engine", "pipeline", "ops/maintenance"])
def test_only_the_room_of_deletes_chooses_between_forms(room: str) -> None:
    """CONTRIBUTING says which files a new form of deletes touches. What else needs the form asks the table for it."""
    chosen = re.compile(r"VECTOR_VERSION|has_vectors|from mirror_pump\.lake\.deletes\.(forms|vectors|position_files)\b")
    naming = {
        str(path.relative_to(PACKAGE)) for path in (PACKAGE / room).rglob("*.py") if chosen.search(path.read_text())
    }
    assert naming <= {"lake/commit/row_delta.py", "pipeline/schema/schema_change.py"}
    table = (PACKAGE / "lake/commit/row_delta.py").read_text()
    assert chosen.findall(table) == ["forms"], "the table has its form, and looks into none"
