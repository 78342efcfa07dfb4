"""Finds the rows of the lake that have the keys of ingested rows, so that these can be deleted by their positions.

Data files never change, so what was found in a file stays true as long as the file is part of the table. Files that
came since (a fold's, a merge's) are looked at again, before the ingest's transaction and within it.

Work: each file's keys are read once and written to disk in parts, as those of the ingested rows are; then each part of
both is read once. So it grows with the rows on either side, not with their product. Memory: see `ExistingRows.look`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mirror_pump.engine.lake_reads.index_keys import KeysTask, read_keys
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed, naming
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID, Positions
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.format.sorted_numbers import found_among
from mirror_pump.lake.key_index.key_index import Places, files_of, place_of, positions_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.ingest.write.ingested_keys import IngestedKeys
from mirror_pump.ops.ingest.write.key_parts import PARTS, KeyParts

_READ_ROWS = 500_000
"""Rows whose keys a thread reads at a time, of one file at least."""

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class _KeysInFile:
    """The ingested keys that a data file has."""

    positions: Positions
    """Rows of the file, ascending, that no position delete hid when it was read."""
    places: Places
    """The ingested row of each."""


@dataclass(frozen=True)
class ReplacedRows:
    """Rows of one state of the table whose keys are ingested."""

    positions: Mapping[str, Positions]
    """By URI of a data file."""
    partitions: Mapping[str, PartitionTuple]
    """The lake partitions of these files, by URI."""
    places: Places
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
    read_rows: int = _READ_ROWS
    _keys_in_files: dict[str, _KeysInFile] = field(default_factory=dict)
    _deleted: dict[str, Places] = field(default_factory=dict)
    """By URI of an equality-delete file: the ingested rows whose keys it deletes."""

    def __post_init__(self) -> None:
        self._listing = Listing(self.storage, (self.tier.field_id, PATH_ID))
        self._spans = _united(span for file in self.ingested if (span := self._span(file)) is not None)
        self._ends = [last for _, last in self._spans]

    def unknown(self, lake: LakeTable) -> bool:
        """Whether files that may hold ingested keys have not been looked at."""
        data, equality, _ = self._files(lake)
        return bool(self._new(data, equality))

    def look(self, lake: LakeTable) -> None:
        """Looks at files that have not been looked at. Raises LakeError.

        Memory: 16 bytes for each row found, and 24 more while they are put in order; 8 for each row that position
        deletes hide in files in which one was found; and for each thread some 25 MB of keys. On disk, in a temporary
        file: 16 or 24 bytes for each row of these files, until it ends.
        """
        data, equality, positions = self._files(lake)
        new = self._new(data, equality)
        if not new:
            return
        others = self.keys.others()
        try:
            with ThreadPoolExecutor(self.workers, thread_name_prefix="keys") as pool:
                for _ in pool.map(lambda group: self._gather(lake, group, others), self._groups(new)):
                    pass
                matches = list(pool.map(lambda part: self.keys.matches(others, part), range(PARTS)))
                rows, places = _in_order(matches)
                limits = np.searchsorted(files_of(rows), np.arange(len(new) + 1))
                rows = positions_of(rows)
                matched_paths = [file.path for number, file in enumerate(new) if limits[number] < limits[number + 1]]
                hidden = self._hidden(pool, positions, matched_paths)
        finally:
            others.close()
        for number, file in enumerate(new):
            at = slice(limits[number], limits[number + 1])
            if file.content is FileContent.DATA:
                self._keys_in_files[file.path] = _visible_keys(rows[at], places[at], hidden.get(file.path, _NOTHING))
            else:
                self._deleted[file.path] = places[at]

    def replaced(self, lake: LakeTable) -> ReplacedRows:
        """What the ingested rows replace in this state, all of whose files were looked at."""
        data, equality, _ = self._files(lake)
        deleted, deleted_at = self._deletions(equality)
        positions = {}
        visible = [_NOTHING]
        for file in data:
            file_keys = self._keys_in_files[file.path]
            if not len(file_keys.positions):
                continue
            positions[file.path] = file_keys.positions
            places = file_keys.places
            if len(deleted):
                at, is_deleted = found_among(deleted, places)
                places = places[~is_deleted | (deleted_at[at] <= file.sequence_number)]
            visible.append(places)
        partitions = {file.path: file.partition for file in data if file.path in positions}
        return ReplacedRows(positions, partitions, _distinct(visible))

    def _deletions(self, equality: Sequence[LiveFile]) -> tuple[Places, npt.NDArray[np.int64]]:
        """The ingested rows whose keys equality deletes name, ascending, and the highest sequence number of those that
        name each."""
        parts = [self._deleted[file.path] for file in equality]
        places = np.concatenate([_NOTHING, *parts])
        numbers = np.repeat(
            np.array([file.sequence_number for file in equality], np.int64), [len(part) for part in parts]
        )
        order = np.lexsort((numbers, places))
        places, numbers = places[order], numbers[order]
        last = np.append(places[1:] != places[:-1], np.ones(min(len(places), 1), np.bool_))
        return places[last], numbers[last]

    def _new(self, data: Sequence[LiveFile], equality: Sequence[LiveFile]) -> list[LiveFile]:
        """The files that have not been looked at."""
        return [
            *(file for file in data if file.path not in self._keys_in_files),
            *(file for file in equality if file.path not in self._deleted),
        ]

    def _groups(self, files: Sequence[LiveFile]) -> list[list[tuple[int, LiveFile]]]:
        """The files with their numbers, in groups that are read at a time."""
        groups: list[list[tuple[int, LiveFile]]] = []
        rows = 0
        for number, file in enumerate(files):
            if not groups or rows + file.records > self.read_rows:
                groups.append([])
                rows = 0
            groups[-1].append((number, file))
            rows += file.records
        return groups

    def _gather(self, lake: LakeTable, group: Sequence[tuple[int, LiveFile]], others: KeyParts) -> None:
        """Writes the keys of files to `others`, with file numbers and rows as places."""
        paths = tuple(file.path for _, file in group)
        read = read_keys(KeysTask(paths, (), lake.schema, self.packing, self.storage))
        places = [place_of(number, np.arange(len(file.keys))) for (number, _), file in zip(group, read, strict=True)]
        keys = PackedKeys.concatenated([file.keys for file in read], self.packing.words)
        others.add(keys, np.concatenate(places))

    def _hidden(
        self, pool: ThreadPoolExecutor, positions: Sequence[LiveFile], paths: Sequence[str]
    ) -> Mapping[str, Positions]:
        """The rows of these files that position deletes hide, ascending. Each delete file is read once."""
        if not paths:
            return {}
        path_set = frozenset(paths)
        parts = pool.map(lambda file: HiddenRows.read([file], path_set, self.storage), naming(positions, paths))
        return HiddenRows.united(parts)

    def _files(self, lake: LakeTable) -> tuple[list[LiveFile], list[LiveFile], list[LiveFile]]:
        """The data files that may hold ingested keys, and all files with deletes. Raises LakeError."""
        by_content: dict[FileContent, list[LiveFile]] = {content: [] for content in FileContent}
        by_manifest = self._listing.files(lake.manifests)
        for file, usual in listed(by_manifest, lake.manifests, lake.spec_ids):
            fits = file.content is not FileContent.EQUALITY_DELETES or set(file.equality_ids) == set(
                self.schema.key_ids
            )
            if not (usual and fits):
                raise LakeError(f"{file.path} is of a kind that mirror-pump does not write", "compact the table")
            if file.records:
                by_content[file.content].append(file)
        data = [file for file in by_content[FileContent.DATA] if self._overlaps(file)]
        return data, by_content[FileContent.EQUALITY_DELETES], by_content[FileContent.POSITION_DELETES]

    def _overlaps(self, file: LiveFile) -> bool:
        """Whether a file may have rows between the lowest and the highest tier key of an ingested file: the tier key is
        part of the key."""
        low, high = self._bounds(file)
        first = 0 if low is None else bisect_left(self._ends, low)
        return first < len(self._spans) and (high is None or self._spans[first][0] <= high)

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
        return (self._spans[0][0], self._spans[-1][1]) if self._spans else None


def _united(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans, both ends included, as disjoint ones in order."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if united and first <= united[-1][1]:
            united[-1] = (united[-1][0], max(last, united[-1][1]))
        else:
            united.append((first, last))
    return united


def _in_order(matches: list[tuple[Places, Places]]) -> tuple[Places, Places]:
    """Rows and the ingested row of each, by rows. Empties the list, so that there are no two copies for long."""
    rows = np.concatenate([part for part, _ in matches])
    places = np.concatenate([part for _, part in matches])
    matches.clear()
    order = np.argsort(rows)
    return rows[order], places[order]


def _visible_keys(positions: Positions, places: Places, hidden: Positions) -> _KeysInFile:
    """Rows of a file but those that are hidden."""
    if not len(hidden):
        return _KeysInFile(positions, places)
    _, is_hidden = found_among(hidden, positions)
    is_visible = ~is_hidden
    return _KeysInFile(positions[is_visible], places[is_visible])


def _distinct(parts: Sequence[Places]) -> Places:
    """All places, ascending, each once. As np.unique, without its copies: these may be as many as the rows."""
    places = np.concatenate(parts)
    places.sort()
    again = places[1:] == places[:-1]
    if again.any():
        places = places[np.concatenate([np.ones(1, np.bool_), ~again])]
    return places
