"""Manifests: merging is logarithmic and loses nothing, whoever wrote them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestContent

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.metadata.manifest_entries import stored_entries
from mirror_pump.lake.metadata.manifest_list import Manifest, read_list
from mirror_pump.lake.metadata.manifests import FULL, HELD, ManifestWriter
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, read_bytes, write_all

SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
STORAGE = StorageOptions(fsync=False)


def _file(name: str, content: FileContent = FileContent.DATA) -> WrittenFile:
    keys = (1,) if content is FileContent.EQUALITY_DELETES else ()
    return WrittenFile(content, name, 2, 100, {1: 9}, {1: 2}, {1: 0}, {1: bytes(8)}, {1: bytes(8)}, keys, (4,))


class Commits:
    """Manifests of successive commits, kept in memory or read back as after a restart."""

    def __init__(self, directory: Path, full: int = FULL) -> None:
        self.full = full
        self.directory = directory.as_uri()
        self.metadata = TableMetadata.new(SCHEMA, self.directory, {}, 0)
        self.manifests: tuple[Manifest, ...] = ()
        self.number = 0

    def commit(self, data: int, deletes: int = 0, *, restart: bool = False) -> None:
        self.number += 1
        writer = ManifestWriter(self.metadata, self.directory, 1000 + self.number, self.number, full=self.full)
        carried = writer.merge(self.manifests, STORAGE)
        new = [
            writer.add(ManifestContent.DATA, [(_file(f"d{self.number}-{n}"), self.number) for n in range(data)]),
            writer.add(
                ManifestContent.DELETES,
                [(_file(f"e{self.number}-{n}", FileContent.EQUALITY_DELETES), self.number) for n in range(deletes)],
            ),
        ]
        self.manifests = (*(manifest for manifest in new if manifest is not None), *carried)
        location = writer.list(self.manifests, None)
        write_all(writer.files, STORAGE)
        if restart:
            self.manifests = read_list(location, STORAGE)

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


STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), max_size=60)


@given(steps=STEPS)
def test_entries_survive_any_number_of_merges(
    steps: list[tuple[int, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    commits = Commits(tmp_path_factory.mktemp("m"))
    expected: list[tuple[Any, ...]] = []
    for data, deletes, restart in steps:
        commits.commit(data, deletes, restart=restart)
        number = commits.number
        expected += [(f"d{number}-{n}", 0, number, number, 1000 + number) for n in range(data)]
        expected += [(f"e{number}-{n}", 2, number, number, 1000 + number) for n in range(deletes)]
    assert commits.entries() == sorted(expected)


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
    commits.commit(HELD + 1)
    commits.commit(1)
    assert [manifest.entries is None for manifest in commits.manifests] == [False, True]
    for _ in range(12):
        commits.commit(HELD + 1)
    assert len(commits.entries()) == 13 * (HELD + 1) + 1
