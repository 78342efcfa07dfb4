"""What moments cost: the bytes of files that would go with each of them.

A file that a snapshot of `main` needs is live from the snapshot that added it to the one that removed it, without a
gap. So it is needed by no other snapshot of `main` if the ones before and after in the history do not need it. Archive
snapshots share files with `main`, and are few: all of them are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import LakeError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.kept_moments import KeptMoment, KeptTable, read_moments
from mirror_pump.source.connect import connect

_PARALLEL = 8


@dataclass(frozen=True)
class MomentTableCost(JsonDocument, keys={"table": None}):
    """The files of one table of a moment."""

    table: KeptTable
    size_bytes: int | None
    """Size of the data and delete files that its snapshots need, and of their manifests. None if there is an
    error."""
    own_bytes: int | None
    """Of these, size of the files that no other snapshot of the table and no other moment needs."""
    error: str | None = None
    """What is wrong: its files cannot be read, or another engine has removed a snapshot from the table's history, so
    that nothing protects its files."""

    def to_json(self) -> dict[str, Any]:
        return self.table.to_json() | super().to_json()


@dataclass(frozen=True)
class MomentCost(JsonDocument, keys={"moment": None}, also=("size_bytes", "own_bytes")):
    """A moment, and the files that it needs."""

    moment: KeptMoment
    tables: tuple[MomentTableCost, ...]

    @property
    def size_bytes(self) -> int | None:
        """Size of all files that it needs. None if those of a table cannot be read."""
        return _sum(table.size_bytes for table in self.tables)

    @property
    def own_bytes(self) -> int | None:
        """Of these, size of the files that only this moment keeps: they go after it is dropped."""
        return _sum(table.own_bytes for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """An entry of the output of `moment list --json`."""
        return JsonDocument.to_json(self.moment) | super().to_json()


def moment_costs(settings: Settings) -> list[MomentCost]:
    """All moments, the oldest frontier first, with what they cost. Raises SourceError."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-moment") as connection:
        moments = read_moments(connection, settings.slot)
    storage = lake_storage(settings)
    registrations: dict[tuple[TableId, str | None], list[tuple[int, KeptTable]]] = {}
    for number, moment in enumerate(moments):
        for table in moment.tables:
            registrations.setdefault((table.table_id, table.pointer), []).append((number, table))
    costs: list[list[MomentTableCost]] = [[] for _ in moments]
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="moment") as pool:
        for of_registration in pool.map(lambda group: _costs(group, storage), registrations.values()):
            for number, cost in of_registration:
                costs[number].append(cost)
    return [
        MomentCost(moment, tuple(sorted(tables, key=lambda cost: cost.table.table)))
        for moment, tables in zip(moments, costs, strict=True)
    ]


def _costs(group: Sequence[tuple[int, KeptTable]], storage: StorageOptions) -> list[tuple[int, MomentTableCost]]:
    """The costs of one table in the moments that have it, each with the number of its moment."""
    files = _SizedFiles(storage)
    needed: list[dict[str, int]] = []
    errors: dict[int, str] = {}
    for number, table in group:
        try:
            needed.append(files.of_all(_snapshots(table, storage)))
        except LakeError as error:
            needed.append({})
            errors[number] = str(error)
    costs: list[tuple[int, MomentTableCost]] = []
    for place, (number, table) in enumerate(group):
        others = {path for index, paths in enumerate(needed) if index != place for path in paths}
        try:
            metadata = None if table.pointer is None else read_metadata(table.pointer, storage)
            if metadata is not None:
                errors |= {} if (lost := _lost(metadata, table)) is None else {number: lost}
                others |= files.of_all(_neighbours(metadata, table)).keys()
        except LakeError as error:
            errors.setdefault(number, str(error))
        size = unshared_size = None
        if number not in errors:
            size = sum(needed[place].values())
            unshared_size = sum(length for path, length in needed[place].items() if path not in others)
        costs.append((number, MomentTableCost(table, size, unshared_size, errors.get(number))))
    return costs


def _lost(metadata: TableMetadata, table: KeptTable) -> str | None:
    """What another engine has taken from the moment. None if the present history has its snapshots."""
    for snapshot_id in (table.snapshot_id, table.main_snapshot_id):
        if metadata.snapshot(snapshot_id) is None:
            return f"another engine has removed snapshot {snapshot_id} from the history: maintenance deletes its files"
    return None


def _snapshots(table: KeptTable, storage: StorageOptions) -> Iterator[Snapshot]:
    for location in {table.metadata_location, table.main_location}:
        snapshot = read_metadata(location, storage).current_snapshot
        if snapshot is not None:
            yield snapshot


def _neighbours(metadata: TableMetadata, table: KeptTable) -> Iterator[Snapshot]:
    """The snapshots of the present history that may share files with a moment's: see the module."""
    current_ids = {table.snapshot_id, table.main_snapshot_id}
    ordered = list(metadata.snapshots.oldest_first())
    main = [snapshot for snapshot in ordered if not snapshot.is_archive]
    yield from (snapshot for snapshot in ordered if snapshot.is_archive and snapshot.snapshot_id not in current_ids)
    # A moment's snapshot that is current is needed without the moment.
    yield from (head for head in (metadata.current_snapshot, metadata.archive_snapshot) if head is not None)
    for place, snapshot in enumerate(main):
        if snapshot.snapshot_id in current_ids:
            yield from (near for near in main[max(place - 1, 0) : place + 2] if near.snapshot_id not in current_ids)


def _sum(sizes: Iterable[int | None]) -> int | None:
    known_sizes = list(sizes)
    return None if None in known_sizes else sum(size or 0 for size in known_sizes)


class _SizedFiles:
    """The files of snapshots of one table. Each manifest is read once."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._of_manifest: dict[str, Mapping[str, int]] = {}

    def of_all(self, snapshots: Iterable[Snapshot]) -> dict[str, int]:
        """Size in bytes of each file that the snapshots need, by location. Raises LakeError."""
        sizes: dict[str, int] = {}
        for snapshot in snapshots:
            for manifest in read_list(snapshot, self._storage):
                sizes[manifest.path] = manifest.length
                if manifest.path not in self._of_manifest:
                    listed = Listing(self._storage).files([manifest])
                    self._of_manifest[manifest.path] = {
                        file.path: file.size_bytes for files in listed.values() for file in files
                    }
                sizes |= self._of_manifest[manifest.path]
        return sizes
