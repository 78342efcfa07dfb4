"""A snapshot by Iceberg's terms: its manifest list, the manifests, and their data files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.tables import DataFile, Manifest, ManifestList, MemoryCatalog, Snapshot, StorageOptions, Table
from tests.support.catalog_kinds import ROWS, file_of


def test_each_snapshot_has_its_own_files(tmp_path: Path) -> None:
    table = Table.create(MemoryCatalog(tmp_path.as_uri(), StorageOptions(fsync=False)), "a.b", ROWS)
    one, two, three = (file_of(table, number) for number in range(3))
    first = table.commit_append([one, two])
    second = table.commit_overwrite([one], [three])
    assert isinstance(second, Snapshot)
    for snapshot, expected in ((first, {one, two}), (second, {two, three})):
        manifests = table.manifest_list(snapshot.snapshot_id)
        assert isinstance(manifests, ManifestList)
        assert manifests.location == snapshot.manifest_list
        files: list[DataFile] = []
        for manifest in manifests.manifests:
            assert isinstance(manifest, Manifest)
            files += table.data_files(manifest)
        assert {file.path for file in files} == expected
        assert {(file.format, file.partition, file.records) for file in files} == {("PARQUET", (), 1)}
        assert {file.path: file.sequence_number for file in files}[two] == first.sequence_number
    assert table.manifest_list() == table.manifest_list(second.snapshot_id)
    assert len(table.manifest_list(first.snapshot_id).manifests) == 1
    with pytest.raises(UsageError):
        table.manifest_list(77)
