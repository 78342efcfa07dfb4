"""Which rows of the lake are below a table's cut-line T: asked of Arrow columns, of bounds, and of data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestContent

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import TableError
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.columns import column_names, plain
from mirror_pump.lake.format.manifest_list import Manifest
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.storage import StorageOptions, open_input
from mirror_pump.model import MirroredTable

_KINDS = (Kind.INT, Kind.LONG, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.DATE)
"""Of tier keys in the lake, whose numbers are tier values (mirror_pump.model.Tier)."""


class Side(Enum):
    """Where the rows of a data file are."""

    BELOW = auto()
    AT_OR_ABOVE = auto()
    BOTH = auto()
    """Or nobody knows without reading it."""


@dataclass(frozen=True)
class CutLine:
    """T, as the lake's column of the tier key has it. Picklable: it travels to tasks."""

    name: str
    """The column's name in the mirrored table."""
    field_id: int
    type: ColumnType
    cut: int
    """T, a tier value."""

    @classmethod
    def of(cls, table: MirroredTable, cut: int | None = None) -> CutLine | None:
        """T of a table, or `cut` in its place; None if no row can be below it, as in every plain mirror.

        TableError if the mirror keeps the tier key as something that does not order as it does.
        """
        if table.tier is None:
            return None
        tier = table.tier if cut is None else replace(table.tier, cut=cut)
        if not tier.moved:
            return None
        column = next(one for one in table.columns if one.name == tier.column)
        if column.type.kind not in _KINDS:
            raise TableError(
                f"the tier key {column.name} of {table.name} is mirrored as {column.type}",
                "register the table without a type of your choice for that column",
            )
        return cls(column.name, column.field_id, column.type, tier.cut)

    def below(self, column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
        """For each value, which is never NULL, whether it is below T."""
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return pa.chunked_array([pc.less(_numbers(one), self._scalar) for one in chunks], pa.bool_())

    def all_above(self, column: pa.ChunkedArray) -> bool:
        """Whether no value is below T."""
        return not pc.any(self.below(column)).as_py()

    @property
    def _scalar(self) -> pa.Scalar:
        return pa.scalar(self.cut, pa.int64())

    def side(self, file: LiveFile) -> Side:
        """Where a file's rows are, by its bounds, which are exact for these types; hidden rows count too."""
        low = ordered(self.type, file.lower_bounds.get(self.field_id))
        high = ordered(self.type, file.upper_bounds.get(self.field_id))
        if not file.records or (high is not None and high < self.cut):
            # A file without rows is some delete's anchor (mirror_pump.lake.commit.concurrent_rewrites): whatever
            # happens, it stays.
            return Side.BELOW
        if low is not None and low >= self.cut:
            return Side.AT_OR_ABOVE
        return Side.BOTH

    def rows_above(self, path: str, storage: StorageOptions) -> tuple[Positions, int]:
        """Row numbers in a data file of the rows at or above T, and how many rows it has. Reads that column alone;
        raises LakeError."""
        parts = []
        begin = 0
        with open_input(path, storage) as source:
            file = pq.ParquetFile(source)
            (name,) = column_names(file, [self.field_id], path)
            for batch in file.iter_batches(columns=[name]):
                above = pc.invert(self.below(batch.column(0))).to_numpy()
                parts.append(np.flatnonzero(above) + begin)
                begin += batch.num_rows
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64), begin


@dataclass(frozen=True)
class Division:
    """A snapshot's data files, divided at T. What is deleted counts as if it were there: nothing is looked up."""

    sides: Mapping[str, Side]
    """By URI, where the rows of a data file are: BOTH for one that really has rows on both sides."""
    hidden: Mapping[str, Positions]
    """By URI of a file with rows on both sides, the rows at or above T; only of those that were read just now."""
    files: Mapping[str, tuple[LiveFile, ...]]
    """Of every manifest, data and deletes, its live files, by the manifest's URI."""

    @property
    def above(self) -> frozenset[str]:
        """URIs of data files with no row below T."""
        return frozenset(path for path, side in self.sides.items() if side is Side.AT_OR_ABOVE)


def divide(
    manifests: Sequence[Manifest],
    line: CutLine,
    listing: Listing,
    storage: StorageOptions,
    known: Mapping[str, Side] | None = None,
) -> Division:
    """Divides the data files of a snapshot at T. `listing` was made for the tier key's bounds.

    Reads the tier key of files whose bounds are on both sides (or unknown), but for those in `known`, the sides that an
    earlier call found for this T. Raises LakeError.
    """
    files = listing.files(manifests)
    sides: dict[str, Side] = {}
    hidden: dict[str, Positions] = {}
    for manifest in manifests:
        if manifest.content != ManifestContent.DATA:
            continue
        for file in files.get(manifest.path, ()):
            side = line.side(file)
            if side is Side.BOTH and known is not None and file.path in known:
                side = known[file.path]
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
    """Days, microseconds, or integers, as int64."""
    array = plain(array)
    if pa.types.is_date32(array.type):
        return array.view(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("us")).view(pa.int64()) if array.type.unit != "us" else array.view(pa.int64())
    return array.cast(pa.int64())
