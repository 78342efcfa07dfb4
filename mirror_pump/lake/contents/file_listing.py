"""Which files a table's manifests name, remembered by manifest: a manifest never changes, so none is read twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.manifest_entries import StoredEntry
from mirror_pump.lake.format.manifest_list import Manifest
from mirror_pump.lake.format.manifests import stored_of
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.storage import StorageOptions


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that a reader of a snapshot sees, whoever added it."""

    content: FileContent
    path: str
    sequence_number: int
    """Its data sequence number."""
    format: str
    """`PARQUET`, `AVRO` or `ORC`."""
    records: int
    size_bytes: int
    equality_ids: tuple[int, ...]
    """Equality deletes only: field IDs of the columns they compare."""
    lower_bounds: Mapping[int, bytes]
    """Iceberg single-value serialisation, by field ID; only the fields that the listing was made for."""
    upper_bounds: Mapping[int, bytes]

    @property
    def about(self) -> str | None:
        """The data file that all rows of a position-delete file name, by its bounds, which are whole paths then; None
        if there may be several, or PATH_ID is not among the listing's fields."""
        lowest = self.lower_bounds.get(PATH_ID)
        return lowest.decode() if lowest is not None and lowest == self.upper_bounds.get(PATH_ID) else None


class Listing:
    """Reads manifests, and keeps what they name for as long as they are asked about. One thread at a time."""

    def __init__(self, storage: StorageOptions, bounds_of: Collection[int] = ()) -> None:
        """`bounds_of`: field IDs whose bounds are kept."""
        self._storage = storage
        self._bounds_of = frozenset(bounds_of)
        self._known: dict[str, tuple[LiveFile, ...]] = {}

    def files(self, manifests: Sequence[Manifest]) -> Mapping[str, tuple[LiveFile, ...]]:
        """Live files by manifest. Reads those manifests that the last call was not about. Raises LakeError."""
        self._known = {
            manifest.path: self._known.get(manifest.path) or self._read(manifest)
            for manifest in manifests
            if manifest.live_files
        }
        return self._known

    def _read(self, manifest: Manifest) -> tuple[LiveFile, ...]:
        return tuple(_live(one, self._bounds_of) for one in stored_of(manifest, self._storage))


def listed(
    by_manifest: Mapping[str, tuple[LiveFile, ...]], manifests: Sequence[Manifest], spec_id: int
) -> Iterator[tuple[LiveFile, bool]]:
    """Every file of a listing, and whether it is of the kind that this project writes: Parquet, of this partition
    spec."""
    for manifest in manifests:
        for file in by_manifest.get(manifest.path, ()):
            yield file, file.format == "PARQUET" and manifest.spec_id == spec_id


def paths_of(by_manifest: Mapping[str, tuple[LiveFile, ...]]) -> dict[str, frozenset[str]]:
    """A listing as a resolution remembers it: by manifest, the files' URIs."""
    return {path: frozenset(file.path for file in files) for path, files in by_manifest.items()}


def live_data_files(manifests: Sequence[Manifest], storage: StorageOptions) -> list[LiveFile]:
    """Every data file that a reader of the snapshot sees."""
    data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    return [file for files in Listing(storage).files(data).values() for file in files]


def live_equality_deletes(manifests: Sequence[Manifest], storage: StorageOptions) -> list[LiveFile]:
    """Every equality-delete file that a reader of the snapshot applies."""
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
    """Position-delete files that may name one of the data files, by their bounds."""
    low, high = min(paths).encode(), max(paths).encode()
    return tuple(
        one.path
        for one in positions
        if one.lower_bounds.get(PATH_ID, low) <= high and one.upper_bounds.get(PATH_ID, high) >= low
    )


def _live(entry: StoredEntry, bounds_of: Collection[int]) -> LiveFile:
    return LiveFile(
        content=FileContent(entry.content),
        path=entry.path,
        sequence_number=entry.sequence_number,
        format=entry.format,
        records=entry.records,
        size_bytes=entry.size_bytes,
        equality_ids=tuple(entry.file[14] or ()),
        lower_bounds=_bounds(entry.file[10], bounds_of),
        upper_bounds=_bounds(entry.file[11], bounds_of),
    )


def _bounds(stored: Mapping[int, bytes] | None, wanted: Collection[int]) -> Mapping[int, bytes]:
    return {field: value for field, value in (stored or {}).items() if field in wanted}
