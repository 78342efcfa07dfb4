"""Row IDs: each file's stay with it however often its entry is carried over, no two files share one, and merging
manifests uses up none."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from pyiceberg.manifest import ManifestContent

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.document.next_metadata import with_format_version, with_snapshot
from mirror_pump.lake.document.snapshot_thinning import HistoryRetention
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest, read_list
from mirror_pump.lake.manifests.manifests import ManifestWriter
from mirror_pump.lake.storage import StorageOptions, write_all

SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
STORAGE = StorageOptions(fsync=False)


class NumberedCommits:
    """Snapshots of files with different numbers of rows."""

    def __init__(self, directory: Path, version: int) -> None:
        self.metadata = TableMetadata.new(SCHEMA, directory.as_uri(), {}, 0, format_version=version)
        (directory / "metadata").mkdir()
        self.manifests: tuple[Manifest, ...] = ()
        self.rows: dict[str, int] = {}
        """Rows of the live files."""
        self.all_rows: dict[str, int] = {}
        """Those of files that were removed, too."""
        self.ids: dict[str, int] = {}
        """First row IDs of all files that ever had one."""

    def commit(self, added: int, removed: frozenset[str] = frozenset()) -> None:
        writer = ManifestWriter(self.metadata)
        number = writer.sequence_number
        rows = {f"d{number}-{place}": 1 + (number + place) % 3 for place in range(added)}
        files = [
            (WrittenFile(FileContent.DATA, path, count, 9, {}, {}, {}, {}, {}), number) for path, count in rows.items()
        ]
        deletes = [(WrittenFile(FileContent.POSITION_DELETES, f"p{number}", 1, 9, {}, {}, {}, {}, {}), number)]
        removal = writer.remove(
            self.manifests, STORAGE, lambda entry: entry.path in removed, lambda manifest: manifest.content == 0
        )
        new = {ManifestContent.DATA: files, ManifestContent.DELETES: deletes}
        manifests = [*writer.next(removal.untouched, new, STORAGE), *removal.rewritten]
        snapshot, self.manifests = writer.snapshot(self.metadata.current_snapshot, manifests, {}, number)
        write_all(writer.files, STORAGE)
        before, kept = self.metadata.next_row_id, len(self.ids)
        self.metadata = with_snapshot(self.metadata, snapshot, None, (), HistoryRetention(newest=5))
        self.rows = {path: count for path, count in (self.rows | rows).items() if path not in removed}
        self.check()
        if self.metadata.format_version >= 3:
            numbered = sum(self.all_rows[path] for path in list(self.ids)[kept:])
            assert self.metadata.next_row_id == before + numbered, "merging uses up no IDs"

    def check(self) -> None:
        live: dict[str, int | None] = {}
        for manifest in self.manifests:
            entries = stored_of(manifest, STORAGE) if manifest.live_files else []
            if manifest.content != ManifestContent.DATA:
                assert manifest.first_row_id is None
                assert {entry.first_row_id for entry in entries} <= {None}
                continue
            live |= {entry.path: entry.first_row_id for entry in entries}
        assert live.keys() == self.rows.keys()
        if self.metadata.format_version < 3:
            assert set(live.values()) <= {None}
            return
        for path, row_id in live.items():
            assert row_id is not None
            assert self.ids.setdefault(path, row_id) == row_id
        self.all_rows |= self.rows
        places = sorted((row_id, self.all_rows[path]) for path, row_id in self.ids.items())
        for (low, count), (high, _) in pairwise(places):
            assert low + count <= high
        assert not places or sum(places[-1]) <= self.metadata.next_row_id

    def restart(self) -> None:
        snapshot = self.metadata.current_snapshot
        assert snapshot is not None
        self.manifests = read_list(snapshot, STORAGE)

    def upgrade(self) -> None:
        self.metadata = with_format_version(self.metadata, 3, "file:///before", 0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.further) for seed in (1, 2))])
def test_random_commits(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    upgraded_at = drawn.choice((0, 5, 30))
    commits = NumberedCommits(tmp_path, 2 if upgraded_at else 3)
    for number in range(60):
        if number == upgraded_at and upgraded_at:
            commits.upgrade()
        gone = drawn.sample(sorted(commits.rows), min(len(commits.rows), drawn.choice((0, 0, 0, 1, 5))))
        commits.commit(drawn.choice((0, 1, 2, 30, 120)), frozenset(gone))
        if drawn.random() < 0.2:
            commits.restart()


def test_rows_from_before_the_upgrade_keep_the_ids_of_its_first_snapshot(tmp_path: Path) -> None:
    """Although the manifest that first has them with IDs has too many entries to be kept in memory, and is merged later
    by its bytes."""
    commits = NumberedCommits(tmp_path, 2)
    for _ in range(9):
        commits.commit(12)
    commits.upgrade()
    for _ in range(95):
        commits.commit(12)
    assert max(manifest.live_files for manifest in commits.manifests) > 1000
