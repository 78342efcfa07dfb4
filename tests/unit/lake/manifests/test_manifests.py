"""Manifests: merging is logarithmic and loses nothing, whoever wrote them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, PartitionFieldSummary, read_manifest_list
from pyiceberg.types import DateType, LongType, NestedField, StructType

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.manifests.entry_reader import EntryReader
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry, stored_entries
from mirror_pump.lake.manifests.manifest_files import MOST_ENTRIES_IN_MEMORY, _header
from mirror_pump.lake.manifests.manifest_list import Manifest, read_list
from mirror_pump.lake.manifests.manifests import FULL, ManifestWriter
from mirror_pump.lake.manifests.partition_summaries import summaries_of, united
from mirror_pump.lake.storage import StorageOptions, read_bytes, write_all
from mirror_pump.model import LakePartitioning

SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
STORAGE = StorageOptions(fsync=False)


def _file(name: str, content: FileContent = FileContent.DATA) -> WrittenFile:
    keys = (1,) if content is FileContent.EQUALITY_DELETES else ()
    return WrittenFile(content, name, 2, 100, {1: 9}, {1: 2}, {1: 0}, {1: bytes(8)}, {1: bytes(8)}, keys, (4,))


def _listed(writer: ManifestWriter, location: str) -> tuple[Manifest, ...]:
    """The manifests of the list that the writer has made."""
    return read_list(Snapshot({"snapshot-id": writer.snapshot_id, "manifest-list": location}), STORAGE)


def _decoded(manifest: Manifest) -> str:
    """Everything that its entries say."""
    return str(list(EntryReader(read_bytes(manifest.path, STORAGE), None).rows()))


class Commits:
    """Manifests of successive commits, kept in memory or read back as after a restart."""

    def __init__(self, directory: Path, full: int = FULL) -> None:
        self.full = full
        self.directory = directory.as_uri()
        self.metadata = TableMetadata.new(SCHEMA, self.directory, {"write.metadata.path": self.directory}, 0)
        self.manifests: tuple[Manifest, ...] = ()
        self.number = 0
        self.file_io = PyArrowFileIO()
        self.new_entries: dict[tuple[bytes, int | None, int | None], list[str]] = {}

    def commit(
        self,
        data: int,
        deletes: int = 0,
        kind: FileContent = FileContent.EQUALITY_DELETES,
        *,
        restart: bool = False,
    ) -> None:
        self.number += 1
        writer = ManifestWriter(self.metadata, 1000 + self.number, self.number, full=self.full)
        new = {
            ManifestContent.DATA: [(_file(f"d{self.number}-{n}"), self.number) for n in range(data)],
            ManifestContent.DELETES: [(_file(f"e{self.number}-{n}", kind), self.number) for n in range(deletes)],
        }
        self.manifests = tuple(writer.next(self.manifests, new, STORAGE))
        self.written = len(writer.files)
        self.location = writer.list(self.manifests, None)
        write_all(writer.files, STORAGE)
        if restart:
            self.manifests = _listed(writer, self.location)

    def added(self) -> list[str]:
        """The entries that pyiceberg finds added, in the manifests of the last commit."""
        found = []
        for manifest in read_manifest_list(self.file_io.new_input(self.location)):
            # All that pyiceberg's answer depends on: most manifests are the same at the next commit.
            content = read_bytes(manifest.manifest_path, STORAGE)
            key = (content, manifest.added_snapshot_id, manifest.sequence_number)
            if key not in self.new_entries:
                entries = manifest.fetch_manifest_entry(self.file_io, discard_deleted=False)
                new = [entry for entry in entries if entry.status == ManifestEntryStatus.ADDED]
                assert {entry.snapshot_id for entry in new} <= {manifest.added_snapshot_id}
                self.new_entries[key] = [entry.data_file.file_path for entry in new]
            paths = self.new_entries[key]
            assert manifest.added_files_count == len(paths)
            # All of them are of the snapshot that added the manifest, as asserted above.
            found += paths if manifest.added_snapshot_id == 1000 + self.number else []
        return sorted(found)

    def entries(self) -> list[tuple[str, int, int, int, int]]:
        found = []
        for manifest in self.manifests:
            content = read_bytes(manifest.path, STORAGE)
            assert len(content) == manifest.length
            _, entries = stored_entries(content, manifest.added_snapshot_id, manifest.sequence_number)
            assert len(entries) == manifest.live_files
            assert sum(entry.records for entry in entries) == manifest.rows[0] + manifest.rows[1]
            assert min(entry.sequence_number for entry in entries) == manifest.min_sequence_number
            assert {entry.content for entry in entries} <= ({0} if manifest.content == 0 else {1, 2})
            found += [(e.path, e.content, e.sequence_number, e.file_sequence_number, e.snapshot_id) for e in entries]
        return sorted(found)


KINDS = st.sampled_from([FileContent.EQUALITY_DELETES, FileContent.POSITION_DELETES])
STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), KINDS, st.booleans()), max_size=60)


@given(steps=STEPS, large=st.sets(st.integers(0, 60), max_size=3))
def test_entries_survive_any_number_of_merges(
    steps: list[tuple[int, int, FileContent, bool]], large: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And of a commit's new entries, those alone have the status ADDED, in at most one new manifest a content."""
    commits = Commits(tmp_path_factory.mktemp("m"))
    expected: list[tuple[Any, ...]] = []
    for place, (data, deletes, kind, restart) in enumerate(steps):
        data += MOST_ENTRIES_IN_MEMORY if place in large else 0
        commits.commit(data, deletes, kind, restart=restart)
        number = commits.number
        added = [(f"d{number}-{n}", 0, number, number, 1000 + number) for n in range(data)]
        added += [(f"e{number}-{n}", int(kind), number, number, 1000 + number) for n in range(deletes)]
        expected += added
        assert commits.added() == sorted(path for path, *_ in added)
        assert commits.written <= 2
        assert len([one for one in commits.manifests if one.added_snapshot_id == 1000 + number]) == commits.written
    assert commits.entries() == sorted(expected)


@pytest.mark.parametrize("full", [FULL, 2])
def test_a_merge_leaves_no_description_of_a_removed_file(tmp_path: Path, full: int) -> None:
    """Of a single manifest either, and of one that is full: descriptions have values of the files' rows. Nor does a
    snapshot on the side, such as the archive's."""
    commits = Commits(tmp_path, full)
    commits.commit(3)
    commits.number += 1
    writer = ManifestWriter(commits.metadata, 1002, 2, full=full)
    removal = writer.remove(commits.manifests, STORAGE, lambda entry: entry.path == "d1-0", lambda _: True)
    (manifest,) = removal.rewritten
    assert (manifest.live_files, manifest.removed_files) == (2, 1)
    write_all(writer.files, STORAGE)
    assert "d1-0" in _decoded(manifest)

    beside = ManifestWriter(commits.metadata, 1003, 3, full=full)
    (carried,) = beside.without([manifest], STORAGE, {})
    write_all(beside.files, STORAGE)
    assert (carried.live_files, carried.removed_files, "d1-0" in _decoded(carried)) == (2, 0, False)

    # Of another engine, whose entries cannot be written again: neither a merge nor a snapshot on the side touches it.
    foreign = replace(manifest, key_metadata=b"key", path="unreadable")
    assert beside.without([foreign], STORAGE, {}) == beside.merged([foreign], STORAGE) == [foreign]

    writer = ManifestWriter(commits.metadata, 1003, 3, full=full)
    commits.manifests = tuple(writer.merged([manifest], STORAGE))
    write_all(writer.files, STORAGE)
    assert [one.removed_files for one in commits.manifests] == [0]
    assert "d1-0" not in _decoded(commits.manifests[0])
    assert [entry[0] for entry in commits.entries()] == ["d1-1", "d1-2"]
    assert ManifestWriter(commits.metadata, 1004, 4, full=full).merged(commits.manifests, STORAGE) == list(
        commits.manifests
    )


@pytest.mark.parametrize("restart_every", [1000, 37])
def test_manifests_of_both_kinds_of_deletes_stay_few(tmp_path: Path, restart_every: int) -> None:
    """What was read from a list has no known kind; it is merged too, though each commit writes deletes."""
    commits = Commits(tmp_path)
    kinds = [FileContent.EQUALITY_DELETES, FileContent.POSITION_DELETES]
    for number in range(1, 301):
        commits.commit(0, 1, kinds[number // 50 % 2], restart=number % restart_every == 0)
        assert commits.written == 1
        assert len(commits.manifests) <= 3 * 3 * 9
    assert len(commits.entries()) == 300


def test_large_manifests_are_merged_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that new entries came into: decoding hundreds of entries would hold up a commit."""
    commits = Commits(tmp_path)
    for _ in range(100):
        commits.commit(9, 1)
    monkeypatch.setattr("mirror_pump.lake.manifests.manifest_files.stored_entries", None)
    for _ in range(1000):
        commits.commit(9, 1)
    monkeypatch.undo()
    assert max(one.live_files for one in commits.manifests) > 10 * MOST_ENTRIES_IN_MEMORY
    assert len(commits.entries()) == 1100 * 10


def test_the_number_of_manifests_and_the_work_are_logarithmic(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    written: Counter[str] = Counter()
    for _ in range(1000):
        before = {manifest.path for manifest in commits.manifests}
        commits.commit(1)
        for manifest in commits.manifests:
            if manifest.path not in before:
                written["entries"] += manifest.live_files
        assert len(commits.manifests) <= 3 * 9 + 1
    assert written["entries"] <= 4 * 1000, "an entry is written once per power of ten"
    assert len(commits.entries()) == 1000


def test_full_manifests_are_left_alone(tmp_path: Path) -> None:
    commits = Commits(tmp_path, full=30)
    for _ in range(100):
        commits.commit(3)
    assert max(manifest.live_files for manifest in commits.manifests) < 30 * 10
    full = {manifest.path for manifest in commits.manifests if manifest.live_files >= 30}
    assert full
    for _ in range(30):
        commits.commit(3)
    assert full <= {manifest.path for manifest in commits.manifests}


def test_a_large_commit_is_not_held_in_memory(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.commit(MOST_ENTRIES_IN_MEMORY + 1)
    commits.commit(1)
    assert [manifest.entries is None for manifest in commits.manifests] == [False, True]
    for _ in range(12):
        commits.commit(MOST_ENTRIES_IN_MEMORY + 1)
    assert len(commits.entries()) == 13 * (MOST_ENTRIES_IN_MEMORY + 1) + 1


def summary(low: bytes, high: bytes, *, contains_null: bool = False) -> PartitionFieldSummary:
    nan = False
    return PartitionFieldSummary(contains_null, nan, low, high)


def with_null(low: bytes, high: bytes) -> PartitionFieldSummary:
    return summary(low, high, contains_null=True)


def _is_one_of(paths: set[str], entry: ManifestEntry) -> bool:
    return entry.path in paths


def _check_partitions(location: str, partition_of: dict[str, int]) -> None:
    """Fails unless pyiceberg finds these partitions in the entries, and exactly their bounds in the manifest list."""
    found: dict[str, int] = {}
    for manifest in read_manifest_list(PyArrowFileIO().new_input(location)):
        entries = manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=False)
        values = [entry.data_file.partition[0] for entry in entries]
        assert manifest.partitions == [summary(pack("<q", min(values)), pack("<q", max(values)))]
        found |= {
            entry.data_file.file_path: entry.data_file.partition[0]
            for entry in entries
            if entry.status != ManifestEntryStatus.DELETED
        }
    assert found == partition_of


PARTITIONS = st.lists(st.integers(-5, 5).map(lambda number: number * 10), max_size=4)


@settings(max_examples=25)
@given(
    commits=st.lists(
        st.tuples(PARTITIONS, PARTITIONS, st.booleans(), st.sets(st.integers(0, 60), max_size=8)), max_size=25
    )
)
def test_partitions_are_in_the_entries_and_exactly_in_the_lists(
    commits: list[tuple[list[int], list[int], bool, set[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As pyiceberg reads them, after merges of manifests and removals of files."""
    directory = tmp_path_factory.mktemp("m").as_uri()
    metadata = TableMetadata.new(
        SCHEMA, directory, {"write.metadata.path": directory}, 0, LakePartitioning.by(1, "truncate[10]")
    )
    manifests: tuple[Manifest, ...] = ()
    partition_of: dict[str, int] = {}
    for number, (data, deletes, restart, removed) in enumerate(commits, 1):
        writer = ManifestWriter(metadata, 1000 + number, number)
        removes = {f"{content}-{place}" for place in removed for content in (0, 2)} & set(partition_of)
        removal = writer.remove(manifests, STORAGE, partial(_is_one_of, removes), lambda _: True)
        assert Counter(one.content for one in removal.rewritten).get(0, 0) <= 1
        assert len(removal.rewritten) <= 3
        for path in removes:
            del partition_of[path]
        new: dict[ManifestContent, list[tuple[WrittenFile, int]]] = {}
        for content, kind, partitions in ((0, ManifestContent.DATA, data), (2, ManifestContent.DELETES, deletes)):
            files = []
            for place, partition in enumerate(partitions):
                name = f"{content}-{4 * number + place}"
                partition_of[name] = partition
                files.append((replace(_file(name, FileContent(content)), partition=(partition,)), number))
            new[kind] = files
        manifests = (*writer.next(removal.untouched, new, STORAGE), *removal.rewritten)
        location = writer.list(manifests, None)
        write_all(writer.files, STORAGE)
        if restart:
            manifests = _listed(writer, location)
        _check_partitions(location, partition_of)


@pytest.mark.parametrize("restart", [False, True])
def test_merged_manifests_have_the_partitions_of_all(tmp_path: Path, restart: bool) -> None:
    """Merged from entries in memory or as bytes, a second time too."""
    directory = tmp_path.as_uri()
    metadata = TableMetadata.new(
        SCHEMA, directory, {"write.metadata.path": directory}, 0, LakePartitioning.by(1, "truncate[10]")
    )
    manifests: tuple[Manifest, ...] = ()
    partition_of: dict[str, int] = {}
    for number in range(1, 112):
        writer = ManifestWriter(metadata, 1000 + number, number)
        partition_of[f"{number}"] = number * 37 % 100 * 10 - 500
        file = replace(_file(f"{number}"), partition=(partition_of[f"{number}"],))
        manifests = tuple(writer.next(manifests, {ManifestContent.DATA: [(file, number)]}, STORAGE))
        location = writer.list(manifests, None)
        write_all(writer.files, STORAGE)
        if restart:
            manifests = _listed(writer, location)
        if number % 10 == 1:
            _check_partitions(location, partition_of)
    assert max(manifest.live_files for manifest in manifests) >= 100


def test_a_file_without_its_partition_is_refused(tmp_path: Path) -> None:
    partitioned = TableMetadata.new(SCHEMA, tmp_path.as_uri(), {}, 0, LakePartitioning.by(1, "truncate[10]"))
    writer = ManifestWriter(partitioned, 1, 1)
    with pytest.raises(ValueError, match="does not fit partition spec 0"):
        writer.next((), {ManifestContent.DATA: [(_file("d"), 1)]}, STORAGE)
    writer = ManifestWriter(TableMetadata.new(SCHEMA, tmp_path.as_uri(), {}, 0), 1, 1)
    with pytest.raises(ValueError, match="does not fit partition spec 0"):
        writer.next((), {ManifestContent.DATA: [(replace(_file("d"), partition=(10,)), 1)]}, STORAGE)


def test_only_equality_deletes_may_apply_to_every_partition(tmp_path: Path) -> None:
    """Of a table that is partitioned by a column outside of its key. Else what has no partition would be lost."""
    other = LakeField(7, "other", ColumnType(Kind.LONG), required=False)
    schema = replace(SCHEMA, fields=(*SCHEMA.fields, other))
    metadata = TableMetadata.new(schema, tmp_path.as_uri(), {}, 0, LakePartitioning.by(7, "identity"))
    writer = ManifestWriter(metadata, 1, 1)
    deletes = [
        (_file("e", FileContent.EQUALITY_DELETES), 1),
        (replace(_file("p", FileContent.POSITION_DELETES), partition=(None,)), 1),
    ]
    manifests = writer.next((), {ManifestContent.DELETES: deletes}, STORAGE)
    assert sorted(manifest.spec_id for manifest in manifests) == [0, 1]
    for content in (FileContent.DATA, FileContent.POSITION_DELETES):
        kind = ManifestContent.DATA if content is FileContent.DATA else ManifestContent.DELETES
        with pytest.raises(ValueError, match="does not fit partition spec 0"):
            ManifestWriter(metadata, 2, 2).next((), {kind: [(_file("x", content), 2)]}, STORAGE)


def test_a_manifest_without_summaries_may_hold_any_partition() -> None:
    kind = StructType(NestedField(1000, "id_trunc", LongType()), NestedField(1001, "at_day", DateType()))
    known = summaries_of(kind, [(5, -3), (None, 7)])
    assert known == [
        with_null(pack("<q", 5), pack("<q", 5)),
        summary(pack("<i", -3), pack("<i", 7)),
    ]
    assert united(kind, [known]) == known
    assert united(kind, [known, None]) == [
        with_null(pack("<q", -(2**63)), pack("<q", 2**63 - 1)),
        with_null(pack("<i", -(2**31)), pack("<i", 2**31 - 1)),
    ]
    before_widening = [summary(pack("<i", -9), pack("<i", 2))]
    wider = StructType(NestedField(1000, "id_trunc", LongType()))
    assert united(wider, [before_widening, summaries_of(wider, [(2**40,)])]) == [
        summary(pack("<q", -9), pack("<q", 2**40))
    ]
    assert summaries_of(wider, [("text",)]) is None


def test_headers_of_wide_tables_stay_on_the_disk(tmp_path: Path) -> None:
    sizes = []
    for columns in (1, 1000):
        fields = (
            LakeField(number, f"c{number}", ColumnType(Kind.LONG), required=True) for number in range(1, columns + 1)
        )
        commits = Commits(tmp_path)
        commits.metadata = TableMetadata.new(LakeSchema(0, tuple(fields), (1,)), tmp_path.as_uri(), {}, 0)
        _header.cache_clear()
        (tmp_path / "metadata").mkdir(exist_ok=True)
        commits.commit(1)
        sizes.append(_header.cache_info().currsize)
    assert sizes == [1, 0]
