"""Data files that are encoded, but not written yet, since their rows may get IDs from rows that they replace.

Which IDs is known only when a publish is staged (mirror_pump.pipeline.key_index.files_with_row_ids). Until then such
files are in memory, or in a file without a name (mirror_pump.runtime.spill), so that each is written once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa

from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile, compression
from mirror_pump.lake.format.partitioning import divided
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, read_bytes, write_all
from mirror_pump.model import LakePartitioning


@dataclass(frozen=True)
class UnwrittenFiles:
    """The contents of such files. Immutable, and picklable."""

    contents: Mapping[str, pa.Buffer] = field(default_factory=dict, repr=False)
    """By URI."""

    @property
    def nbytes(self) -> int:
        """Their size in bytes."""
        return sum(map(len, self.contents.values()))

    @classmethod
    def joined(cls, parts: Iterable[UnwrittenFiles]) -> Self:
        """All of them."""
        return cls({path: content for part in parts for path, content in part.contents.items()})

    def content(self, path: str, storage: StorageOptions) -> memoryview:
        """The content of a data file, written or not. Raises LakeError."""
        return memoryview(self.contents[path] if path in self.contents else read_bytes(path, storage))

    def write(self, storage: StorageOptions, without: Collection[str] = ()) -> tuple[str, ...]:
        """Writes the files as they are, but for those `without`, and returns their URIs. Raises LakeError, and leaves
        none then."""
        paths = tuple(path for path in self.contents if path not in without)
        write_all(((path, memoryview(self.contents[path])) for path in paths), storage)
        return paths


NONE_UNWRITTEN = UnwrittenFiles()


def encoded_data_files(
    rows: pa.Table, schema: LakeSchema, location: str, partitioning: LakePartitioning | None
) -> tuple[tuple[WrittenFile, ...], UnwrittenFiles]:
    """The files that `write_data_files` would write of these rows, described as if they were there. Raises ValueError
    as that does."""
    files = []
    contents = {}
    for partition, part in divided(rows, schema, partitioning):
        options = compression(part.nbytes)
        with DataFileWriter(schema, location, None, partition=partition, options=options) as writer:
            writer.write(part)
        files.append(writer.written)
        contents[writer.path] = writer.content
    return tuple(files), UnwrittenFiles(contents)
