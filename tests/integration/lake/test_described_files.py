"""Metadata that can be read and describes its files wrongly: each kind of it is a damage, and is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import FileDamaged, FileMissing
from mirror_pump.lake.commit import readable_files
from mirror_pump.lake.commit.presence import wrong_files
from mirror_pump.lake.commit.readable_files import DescriptionCheck
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.contents.described_files import require_described
from mirror_pump.lake.format.partitioned_files import write_data_files
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.model import LakePartitioning, PartitionedColumn
from proofs.damage import files, metadata
from proofs.damage.damage import DAMAGES, Damage
from proofs.damage.small_mirror import SmallMirror
from proofs.damage.table_files import TableFiles
from tests.support.lake_tables import START_MS, STORAGE, Rows, SmallTable

_BY_ID = LakePartitioning((PartitionedColumn(1, "truncate[10]"),))
_LOOKED_AT = ("entry of a data file", "entry of a delete file", "line of a manifest list")
_ROWS_ALONE = {
    # What remains is a table as another one could be: only its rows are not those of the heap.
    "entry of a data file: gone, and not counted in the list",
    "entry of a delete file: gone, and not counted in the list",
    "entry of a delete file: vector of a data file that there is not",
    "line of a manifest list: gone",
}
_BY_CHANCE = {
    # Named if that file is newer than the vector; else its rows alone tell.
    "entry of a delete file: vector of another data file",
    # Named if the list says that all of the manifest are newer.
    "entry of a data file: data sequence number lowered",
}


class SmallLake:
    """The tables of a lake without a mirror, with those parts that metadata is damaged in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        root = directory.as_uri()
        self.tables = {
            "items": SmallTable(f"{root}/items", format_version=3),
            "others": SmallTable(f"{root}/others", format_version=3),
            "orders": SmallTable(f"{root}/orders"),
            "events": SmallTable(f"{root}/events", partitioning=_BY_ID),
        }
        for table in self.tables.values():
            rows: Rows = {key: f"v{key}" for key in range(40)}
            table.commit(RowDelta((table.segment(rows),)))
            table.commit(RowDelta((table.segment({100: "more"}, deleted=[1, 2]),)))
            table.convert()
            table.commit(RowDelta((table.segment({101: "more"}),)))

    def table(self, name: str) -> TableFiles:
        return TableFiles(self.tables[name].table.metadata_location)

    def problems(self, *, footers: bool) -> list[str]:
        """What is wrong, by the metadata alone, or with footers as well."""
        texts = []
        for table in self.tables.values():
            location = table.table.metadata_location
            if not footers:
                texts += [str(error) for error in wrong_files(location, STORAGE)]
                continue
            try:
                DescriptionCheck(STORAGE).require_described(location)
            except (FileMissing, FileDamaged) as error:
                texts.append(str(error))
        return texts


def _name(damage: Damage) -> str:
    return f"{damage.thing}: {damage.name}"


@pytest.mark.unverified("no mirror is there")
def test_each_wrong_description_is_named(tmp_path: Path) -> None:
    lake = SmallLake(tmp_path / "lake")
    assert lake.problems(footers=True) == []
    shutil.copytree(lake.directory, tmp_path / "kept")
    tried = [damage for damage in DAMAGES if damage.thing in _LOOKED_AT]
    assert len(tried) > 30, (files, metadata)
    unnamed = set()
    for damage in tried:
        damage.apply(cast("SmallMirror", lake))
        if not lake.problems(footers=True):
            unnamed.add(_name(damage))
        shutil.rmtree(lake.directory)
        shutil.copytree(tmp_path / "kept", lake.directory)
    harmless = {_name(damage) for damage in tried if damage.harmless}
    assert unnamed - _BY_CHANCE == (_ROWS_ALONE | harmless) - _BY_CHANCE


@pytest.mark.unverified("no mirror is there")
@pytest.mark.parametrize(
    ("kind", "transform", "values"),
    [
        (Kind.DATE, "month", (-735_000, 6_660_000)),
        (Kind.DATE, "year", (2**31 - 1,)),
        (Kind.TIMESTAMP, "month", (2**62,)),
        (Kind.TIMESTAMP, "hour", (2**63 - 1, 1 - 2**63)),
        (Kind.INT, "truncate[10]", (-(2**31),)),
        (Kind.LONG, "truncate[10]", (-(2**63),)),
    ],
)
def test_partitions_at_the_ends_of_types(tmp_path: Path, kind: Kind, transform: str, values: tuple[int, ...]) -> None:
    """They are as Java has them, and no damage."""
    fields = (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "d", ColumnType(kind), required=False),
    )
    schema = LakeSchema(0, fields, (1,))
    partitioning = LakePartitioning((PartitionedColumn(2, transform),))
    location = tmp_path.as_uri()
    arrow = ColumnType(kind).arrow
    column = pa.array(values, pa.int32() if arrow.bit_width == 32 else pa.int64()).view(arrow)
    rows = pa.table([pa.array(range(len(values)), pa.int64()), column], schema=schema.arrow)
    staged = LakeTable.create(schema, location, STORAGE, {}, START_MS, partitioning=partitioning)
    files = write_data_files(rows, schema, location, STORAGE, partitioning)
    staged = staged.table.stage(RowDelta((SegmentFiles(files, ()),)), START_MS + 1000, frozenset())
    DescriptionCheck(STORAGE).require_described(staged.new_location)


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments and feeds share files; one that is described otherwise is read again."""
    table = SmallTable(tmp_path.as_uri())
    table.commit(RowDelta((table.segment({1: "a"}),)))
    table.commit(RowDelta((table.segment({2: "b"}),)))
    read: list[str] = []

    def counted(entry: StoredEntry, *others: Any) -> None:
        read.append(entry.path)
        require_described(entry, *others)

    monkeypatch.setattr(readable_files, "require_described", counted)
    footers = DescriptionCheck(STORAGE)
    for location in table.locations:
        footers.require_described(location)
    assert len(read) == 2
    assert len(set(read)) == 2
