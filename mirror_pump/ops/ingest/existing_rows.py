"""Finds the rows of the lake that have the keys of ingested rows, so that these can be deleted by their positions.

Data files never change, so what was found in a file stays true as long as the file is part of the table. Files that
came since (a fold's, a merge's) are looked at again, before the ingest's transaction and within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mirror_pump.engine.lake_reads.index_keys import FileKeys, KeysTask, read_keys
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed, naming
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID, Positions
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.ingest.ingested_keys import IngestedKeys

_TASK_ROWS = 2_000_000

_Places = npt.NDArray[np.int64]
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class _KeysInFile:
    """The ingested keys that a data file has."""

    positions: Positions
    """Rows of the file, ascending, that no position delete hid when it was read."""
    places: _Places
    """The ingested row of each."""
    sequence_number: int


@dataclass(frozen=True)
class ReplacedRows:
    """Rows of one state of the table whose keys are ingested."""

    positions: Mapping[str, Positions]
    """By URI of a data file."""
    partitions: Mapping[str, PartitionTuple]
    """The lake partitions of these files, by URI."""
    places: _Places
    """Of the ingested rows whose key has a row that readers see; ascending, each once."""


@dataclass
class ExistingRows:
    """Used by one thread at a time."""

    schema: LakeSchema
    packing: KeyPacking
    storage: StorageOptions
    tier: LakeField
    keys: IngestedKeys
    ingested: Sequence[WrittenFile]
    workers: int
    _found: dict[str, _KeysInFile] = field(default_factory=dict)
    _deleted: dict[str, _Places] = field(default_factory=dict)
    """By URI of an equality-delete file: the ingested rows whose keys it deletes."""

    def __post_init__(self) -> None:
        self._listing = Listing(self.storage, (self.tier.field_id, PATH_ID))
        self._spans = [span for file in self.ingested if (span := self._span(file)) is not None]

    def unknown(self, lake: LakeTable) -> bool:
        """Whether files that may hold ingested keys have not been looked at."""
        data, equality, _ = self._files(lake)
        return any(file.path not in self._found for file in data) or any(
            file.path not in self._deleted for file in equality
        )

    def look(self, lake: LakeTable) -> None:
        """Looks at files that have not been looked at. Raises LakeError."""
        data, equality, positions = self._files(lake)
        new = [file for file in data if file.path not in self._found]
        deletes = [file for file in equality if file.path not in self._deleted]
        groups = [*((group, positions) for group in _groups(new)), *((group, ()) for group in _groups(deletes))]
        sequence = {file.path: file.sequence_number for file in (*new, *deletes)}
        with ThreadPoolExecutor(self.workers, thread_name_prefix="keys") as pool:
            for result in pool.map(lambda group: self._read(lake, *group), groups):
                for path, rows, places, is_data in result:
                    if is_data:
                        self._found[path] = _KeysInFile(rows, places, sequence[path])
                    else:
                        self._deleted[path] = np.sort(places)

    def replaced(self, lake: LakeTable) -> ReplacedRows:
        """What the ingested rows replace in this state, all of whose files were looked at."""
        data, equality, _ = self._files(lake)
        positions = {}
        visible = [_NOTHING]
        for file in data:
            found = self._found[file.path]
            if not len(found.positions):
                continue
            positions[file.path] = found.positions
            places = found.places
            for delete in equality:
                if delete.sequence_number > file.sequence_number:
                    places = places[~np.isin(places, self._deleted[delete.path])]
            visible.append(places)
        partitions = {file.path: file.partition for file in data if file.path in positions}
        return ReplacedRows(positions, partitions, _distinct(visible))

    def _read(
        self, lake: LakeTable, group: Sequence[LiveFile], positions: Sequence[LiveFile]
    ) -> list[tuple[str, Positions, _Places, bool]]:
        """Path, rows and ingested places of the ingested keys in some files, and whether these are data files."""
        paths = tuple(file.path for file in group)
        task = KeysTask(paths, naming(positions, paths), lake.schema, self.packing, self.storage)
        read: list[FileKeys] = read_keys(task)
        places = self.keys.find(PackedKeys.concatenated([file.keys for file in read], self.packing.words))
        found = []
        begin = 0
        for file, live in zip(read, group, strict=True):
            own = places[begin : begin + len(file.keys)]
            begin += len(file.keys)
            hits = np.flatnonzero(own >= 0)
            found.append((file.path, file.positions[hits], own[hits], live.content is FileContent.DATA))
        return found

    def _files(self, lake: LakeTable) -> tuple[list[LiveFile], list[LiveFile], list[LiveFile]]:
        """The data files that may hold ingested keys, and all files with deletes. Raises LakeError."""
        found: dict[FileContent, list[LiveFile]] = {content: [] for content in FileContent}
        by_manifest = self._listing.files(lake.manifests)
        for file, usual in listed(by_manifest, lake.manifests, lake.spec_id):
            own = file.content is not FileContent.EQUALITY_DELETES or set(file.equality_ids) == set(self.schema.key_ids)
            if not (usual and own):
                raise LakeError(f"{file.path} is of a kind that mirror-pump does not write", "compact the table")
            if file.records:
                found[file.content].append(file)
        data = [file for file in found[FileContent.DATA] if self._overlaps(file)]
        return data, found[FileContent.EQUALITY_DELETES], found[FileContent.POSITION_DELETES]

    def _overlaps(self, file: LiveFile) -> bool:
        """Whether a file may have rows between the lowest and the highest tier key of an ingested file: the tier key is
        part of the key."""
        low, high = self._bounds(file)
        return any((low is None or low <= last) and (high is None or high >= first) for first, last in self._spans)

    def _span(self, file: WrittenFile) -> tuple[int, int] | None:
        low, high = self._bounds(file)
        return None if low is None or high is None else (low, high)

    def _bounds(self, file: LiveFile | WrittenFile) -> tuple[int | None, int | None]:
        low = ordered(self.tier.type, file.lower_bounds.get(self.tier.field_id))
        high = ordered(self.tier.type, file.upper_bounds.get(self.tier.field_id))
        return (None if low is None else int(low)), (None if high is None else int(high))

    @property
    def range(self) -> tuple[int, int] | None:
        """The lowest and the highest tier value of the ingested rows; None without rows."""
        if not self._spans:
            return None
        return min(low for low, _ in self._spans), max(high for _, high in self._spans)


def _distinct(parts: Sequence[_Places]) -> _Places:
    """All places, ascending, each once. As np.unique, without its copies: these may be as many as the rows."""
    places = np.concatenate(parts)
    places.sort()
    again = places[1:] == places[:-1]
    if again.any():
        places = places[np.concatenate([np.ones(1, np.bool_), ~again])]
    return places


def _groups(files: Sequence[LiveFile]) -> list[list[LiveFile]]:
    groups: list[list[LiveFile]] = []
    rows = 0
    for file in files:
        if not groups or rows + file.records > _TASK_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(file)
        rows += file.records
    return groups
