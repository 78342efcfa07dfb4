"""Lists the files that a table's manifests name. Cached by manifest: manifests never change, so each is read once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.deletion_vectors import VectorPlace
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StorageOptions

_READABLE = ("PARQUET", "PUFFIN")


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that readers of a snapshot see, whichever engine added it."""

    content: FileContent
    path: str
    sequence_number: int
    """Its data sequence number."""
    format: str
    """`PARQUET`, `AVRO` or `ORC`; `PUFFIN` of deletion vectors."""
    records: int
    size_bytes: int
    equality_ids: tuple[int, ...]
    """Equality deletes only: field IDs of the columns they compare."""
    lower_bounds: Mapping[int, bytes]
    """Iceberg single-value serialisation by field ID, for the fields that the listing was made for."""
    upper_bounds: Mapping[int, bytes]
    partition: PartitionTuple = UNPARTITIONED
    """Its lake partition, under the partition spec of its manifest."""
    spec_id: int = 0
    """That partition spec."""
    vector: VectorPlace | None = None
    """Of a deletion vector where it is."""
    first_row_id: int | None = None
    """Of a data file the ID of its first row; None in snapshots without row lineage."""

    @property
    def about(self) -> str | None:
        """URI of the data file that a position-delete file refers to, if its bounds on the path, which are whole paths
        then, show that it is the only one. None if there may be several, or if PATH_ID is not among the listing's
        fields."""
        lowest = self.lower_bounds.get(PATH_ID)
        return lowest.decode() if lowest is not None and lowest == self.upper_bounds.get(PATH_ID) else None


class Listing:
    """Reads manifests and caches what they name for as long as successive calls ask for it. Not thread-safe."""

    def __init__(self, storage: StorageOptions, bounds_of: Collection[int] = ()) -> None:
        """`bounds_of`: field IDs whose bounds are kept."""
        self._storage = storage
        self._bounds_of = frozenset(bounds_of)
        self._cached: dict[str, tuple[LiveFile, ...]] = {}
        self._row_ids: dict[str, int | None] = {}
        """The first row ID of each manifest in the cache: it gets one with the first snapshot of format version 3."""

    def files(self, manifests: Sequence[Manifest]) -> Mapping[str, tuple[LiveFile, ...]]:
        """Live files by manifest URI. Reads only manifests that the previous call did not ask for. Raises LakeError."""
        self._cached = {
            manifest.path: self._same(manifest) or self._read(manifest) for manifest in manifests if manifest.live_files
        }
        self._row_ids = {manifest.path: manifest.first_row_id for manifest in manifests if manifest.live_files}
        return self._cached

    def _same(self, manifest: Manifest) -> tuple[LiveFile, ...] | None:
        is_same = self._row_ids.get(manifest.path) == manifest.first_row_id
        return self._cached.get(manifest.path) if is_same else None

    def _read(self, manifest: Manifest) -> tuple[LiveFile, ...]:
        return tuple(_live(entry, manifest.spec_id, self._bounds_of) for entry in stored_of(manifest, self._storage))


def listed(
    by_manifest: Mapping[str, tuple[LiveFile, ...]], manifests: Sequence[Manifest], spec_ids: Collection[int]
) -> Iterator[tuple[LiveFile, bool]]:
    """Every file of a listing, with a flag: whether it is of the kind that this project writes, that is Parquet, or
    deletion vectors, of these partition specs."""
    for manifest in manifests:
        for file in by_manifest.get(manifest.path, ()):
            yield file, file.format in _READABLE and manifest.spec_id in spec_ids


def paths_of(by_manifest: Mapping[str, tuple[LiveFile, ...]]) -> dict[str, frozenset[str]]:
    """A listing reduced to URIs: those of the live files, by manifest URI."""
    return {path: frozenset(file.path for file in files) for path, files in by_manifest.items()}


def live_data_files(
    manifests: Sequence[Manifest], storage: StorageOptions, bounds_of: Collection[int] = ()
) -> list[LiveFile]:
    """Every data file that readers of the snapshot see. `bounds_of`: as of Listing."""
    data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    return [file for files in Listing(storage, bounds_of).files(data).values() for file in files]


def live_equality_deletes(manifests: Sequence[Manifest], storage: StorageOptions) -> list[LiveFile]:
    """Every equality-delete file that readers of the snapshot apply."""
    deletes = [
        manifest
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES and manifest.deletes is not FileContent.POSITION_DELETES
    ]
    return [
        file
        for files in Listing(storage).files(deletes).values()
        for file in files
        if file.content is FileContent.EQUALITY_DELETES
    ]


def naming(positions: Sequence[LiveFile], paths: Sequence[str]) -> tuple[str, ...]:
    """URIs of the position-delete files whose bounds allow that they refer to one of these data files."""
    low, high = min(paths).encode(), max(paths).encode()
    return tuple(
        file.path
        for file in positions
        if file.lower_bounds.get(PATH_ID, low) <= high and file.upper_bounds.get(PATH_ID, high) >= low
    )


def _live(entry: StoredEntry, spec_id: int, bounds_of: Collection[int]) -> LiveFile:
    lower, upper = (_bounds(stored, bounds_of) for stored in (entry.lower_bounds, entry.upper_bounds))
    if entry.blob is not None and entry.referenced_data_file is not None and PATH_ID in bounds_of:
        # A vector has no bounds, and is about one data file.
        lower = upper = {PATH_ID: entry.referenced_data_file.encode("utf-8", "surrogatepass")}
    return LiveFile(
        content=FileContent(entry.content),
        path=entry.path,
        sequence_number=entry.sequence_number,
        format=entry.format,
        records=entry.records,
        size_bytes=entry.size_bytes,
        equality_ids=entry.equality_ids,
        lower_bounds=lower,
        upper_bounds=upper,
        partition=entry.partition,
        spec_id=spec_id,
        vector=None if entry.blob is None else VectorPlace(entry.path, entry.blob, entry.records),
        first_row_id=entry.first_row_id if entry.content == FileContent.DATA else None,
    )


def _bounds(stored: Mapping[int, bytes], field_ids: Collection[int]) -> Mapping[int, bytes]:
    return {field: value for field, value in stored.items() if field in field_ids}
