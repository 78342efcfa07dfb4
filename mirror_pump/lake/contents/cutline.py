"""Which rows of the lake are below a table's cut-line, decided for Arrow columns, for bounds, and for data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import ManifestContent

from decoders.columns import ColumnType
from mirror_pump.errors import TableError
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.columns import column_names, plain
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.partitioning import PartitionTuple, partitions_of
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TierKind, tier_kind


class Side(Enum):
    """On which side of the cut-line the rows of a data file are."""

    BELOW = auto()
    AT_OR_ABOVE = auto()
    BOTH = auto()
    """Also the answer if only reading the file could tell."""


@dataclass(frozen=True)
class CutLine:
    """A table's cut-line, in terms of the lake's tier key column. Picklable: it travels to tasks."""

    name: str
    """The column's name in the mirrored table."""
    field_id: int
    type: ColumnType
    cut: int
    """The cut-line, a tier value."""

    @classmethod
    def of(cls, table: MirroredTable, cut: int | None = None) -> CutLine | None:
        """The cut-line of a table, or `cut` instead; None if no row can be below it, as in every plain mirror.

        Raises TableError if the mirror stores the tier key as a type that orders differently.
        """
        if table.tier is None:
            return None
        tier = table.tier if cut is None else replace(table.tier, cut=cut)
        if not tier.moved:
            return None
        column = table.tier_column
        if not column.type.is_ordinal:
            raise TableError(
                f"the tier key {column.name} of {table.name} is mirrored as {column.type}",
                "register the table without a type of your choice for that column",
            )
        return cls(column.name, column.field_id, column.type, tier.cut)

    def below(self, column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
        """For each value, none of which may be NULL, whether it is below the cut-line."""
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return pa.chunked_array([pc.less(_numbers(chunk), self._scalar) for chunk in chunks], pa.bool_())

    def all_above(self, column: pa.ChunkedArray) -> bool:
        """Whether no value is below the cut-line."""
        return not pc.any(self.below(column)).as_py()

    @property
    def kind(self) -> TierKind:
        kind = tier_kind(self.type)
        assert kind is not None, self.type
        return kind

    @property
    def _scalar(self) -> pa.Scalar:
        return pa.scalar(self.cut, pa.int64())

    def side(self, file: LiveFile) -> Side:
        """The side of a file's rows by its bounds, which are exact for these types. Deleted rows count too."""
        low = ordered(self.type, file.lower_bounds.get(self.field_id))
        high = ordered(self.type, file.upper_bounds.get(self.field_id))
        if not file.records or (high is not None and high < self.cut):
            # A file without rows is a placeholder for some delete (mirror_pump.lake.commit.new_snapshot) and
            # has to stay.
            return Side.BELOW
        if low is not None and low >= self.cut:
            return Side.AT_OR_ABOVE
        return Side.BOTH

    def rows_above(self, path: str, storage: StorageOptions) -> tuple[Positions, int]:
        """Row numbers of a data file's rows at or above the cut-line, and its total row count.

        Reads the tier key column only. Raises LakeError.
        """
        return self._rows(path, storage, below=False)

    def rows_below(self, path: str, storage: StorageOptions) -> tuple[Positions, int]:
        """As `rows_above`, for the rows below the cut-line."""
        return self._rows(path, storage, below=True)

    def _rows(self, path: str, storage: StorageOptions, *, below: bool) -> tuple[Positions, int]:
        parts = []
        begin = 0
        with open_parquet(path, storage) as file:
            (name,) = column_names(file, [self.field_id], path)
            for batch in file.iter_batches(columns=[name]):
                is_below = self.below(batch.column(0)).to_numpy()
                parts.append(np.flatnonzero(is_below == below) + begin)
                begin += batch.num_rows
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64), begin


@dataclass(frozen=True)
class Division:
    """A snapshot's data files, divided at the cut-line. Deleted rows count as present: deletes are not looked up."""

    sides: Mapping[str, Side]
    """Side of each data file's rows, by URI. Here BOTH means that the file really has rows on both sides."""
    hidden: Mapping[str, Positions]
    """Rows at or above the cut-line of files with rows on both sides, by URI; only of files that this call has read."""
    files: Mapping[str, tuple[LiveFile, ...]]
    """Live files of every manifest, data and deletes, by the manifest's URI."""

    @property
    def above(self) -> frozenset[str]:
        """URIs of data files with no row below the cut-line."""
        return frozenset(path for path, side in self.sides.items() if side is Side.AT_OR_ABOVE)

    @property
    def partitions(self) -> dict[str, PartitionTuple]:
        """Lake partitions of the live files, by URI."""
        return partitions_of(chain.from_iterable(self.files.values()))


def divide(
    manifests: Sequence[Manifest],
    line: CutLine,
    listing: Listing,
    storage: StorageOptions,
    known_sides: Mapping[str, Side] | None = None,
) -> Division:
    """Divides a snapshot's data files at the cut-line. `listing` must have been made with the tier key's bounds.

    Reads the tier key of files whose bounds span the cut-line or are unknown, except for files in `known_sides`: the
    sides that an earlier call found for this cut-line. Raises LakeError.
    """
    files = listing.files(manifests)
    sides: dict[str, Side] = {}
    hidden: dict[str, Positions] = {}
    for manifest in manifests:
        if manifest.content != ManifestContent.DATA:
            continue
        for file in files.get(manifest.path, ()):
            side = line.side(file)
            if side is Side.BOTH and known_sides is not None and file.path in known_sides:
                side = known_sides[file.path]
            elif side is Side.BOTH:
                rows, total = line.rows_above(file.path, storage)
                if len(rows) == total:
                    side = Side.AT_OR_ABOVE
                elif len(rows):
                    hidden[file.path] = rows
                else:
                    side = Side.BELOW
            sides[file.path] = side
    return Division(sides, hidden, files)


def _numbers(array: pa.Array) -> pa.Array:
    """The values as int64: days, microseconds, or the integers themselves."""
    array = plain(array)
    if pa.types.is_date32(array.type):
        return array.view(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("us")).view(pa.int64()) if array.type.unit != "us" else array.view(pa.int64())
    return array.cast(pa.int64())
