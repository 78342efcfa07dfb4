"""A lake table that grows by a file at a time, without a catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestContent

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.manifests import ManifestWriter
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.model import LakePartitioning
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan

STORAGE = StorageOptions(fsync=False)
SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "part", ColumnType(Kind.STRING), required=True),
        LakeField(3, "v", ColumnType(Kind.DOUBLE), required=False),
    ),
    (1, 2),
)


class GrowingTable:
    """A table to which commits are added, one data or delete file each."""

    def __init__(self, directory: Path, partitioning: LakePartitioning | None = None) -> None:
        self.metadata = TableMetadata.new(SCHEMA, f"file://{directory}", {}, 0, partitioning)
        self.manifests: list[Manifest] = []
        self.number = 0

    def add(self, file: WrittenFile) -> None:
        """A commit of the file."""
        self.number += 1
        content = ManifestContent.DATA if file.content is FileContent.DATA else ManifestContent.DELETES
        writer = ManifestWriter(self.metadata, self.number, self.number)
        self.manifests += writer.next((), {content: [(file, self.number)]}, STORAGE)
        location = writer.list(self.manifests, None)
        write_all(writer.files, STORAGE)
        snapshot: dict[str, Any] = {
            "snapshot-id": self.number,
            "sequence-number": self.number,
            "timestamp-ms": 0,
            "manifest-list": location,
            "summary": {"operation": "append"},
        }
        if self.number > 1:
            snapshot["parent-snapshot-id"] = self.number - 1
        document = dict(self.metadata.document)
        document["snapshots"] = [*document["snapshots"], snapshot]
        document["current-snapshot-id"] = document["last-sequence-number"] = self.number
        self.metadata = TableMetadata(document)

    def store(self) -> str:
        """Writes the metadata file; returns its URI."""
        location = f"{self.metadata.location}/metadata/v{self.number}.metadata.json"
        write_all([(location, self.metadata.to_json())], STORAGE)
        return location

    def scan(self, predicate: str | None = None, columns: list[str] | None = None) -> Scan:
        """Of the current snapshot."""
        if predicate is None:
            return Scan(read_plan(self.metadata, STORAGE, columns=columns))
        return Scan(read_plan(self.metadata, STORAGE, predicate, columns=columns))


def rows_of(rows: list[tuple[int, str, float | None]]) -> pa.Table:
    """Rows of SCHEMA."""
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(list(column), kind) for column, kind in zip(columns, SCHEMA.arrow.types, strict=True)],
        schema=SCHEMA.arrow,
    )
