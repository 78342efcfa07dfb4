"""Deletes files of a table that nothing refers to, so that nothing that anybody may still need can be among them.

Four fences, each for what the others cannot see:
1. Reachability: what the table's metadata names, in any retained snapshot, branch, tag or log, stays (Iceberg's own
   procedure decides, in its dry run).
2. Grace: files younger than the policy's grace stay. Other engines' jobs write files before they commit them.
3. The declared sweep (`begin_sweep`): a publish that was held up for longer than the grace, or whose outcome was
   unknown, cannot name a swept file afterwards; it fails and its batch is received again. Publishes that landed before
   are seen by fence 1, which looks later. The metadata that a publish stages is never older than 20 minutes when it
   lands (sql/queries/publish.sql, touch_table), and the grace of metadata files is at least 30.
4. Pins and published locations: metadata files that the catalog names stay, and all that are not older than the oldest
   pinned snapshot, since its reader may come back to the metadata file that it was given.
A table whose initial copy runs is not swept at all.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mirror_pump.engine.procedures import Procedures
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.metadata.metadata_files import metadata_directory, seam_directory
from mirror_pump.lake.metadata.snapshot import Snapshot
from mirror_pump.lake.storage import StorageOptions, StoredFile, delete, join, list_files
from mirror_pump.model import TableName
from mirror_pump.policy import Policy
from mirror_pump.source.catalog.maintenance import MaintainedTable, begin_sweep, read_tables
from mirror_pump.source.connect import PgConnection

CLOCK_SKEW = 600.0
"""Seconds by which the clocks of pump, maintainer and storage may differ."""
_PIN_MARGIN = 3600.0
"""Seconds: a metadata file is written about when its snapshot is made, or, by a rewrite, later."""
_MOST_FILES = 200_000
"""Candidates of one sweep, oldest first: they pass through Spark's driver. The next sweep goes on."""
_PARALLEL_DELETES = 8
_METADATA_SUFFIX = ".metadata.json"


@dataclass(frozen=True)
class Sweep:
    """What a sweep found, and did unless it was a dry run."""

    files: tuple[StoredFile, ...]
    """Files that nothing refers to and nothing protects."""
    listed: int
    """Files below the table's location."""
    candidates: int
    """Old enough."""
    deleted: bool

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def sweep(
    connection: PgConnection,
    slot: str,
    table: MaintainedTable,
    policy: Policy,
    procedures: Procedures,
    storage: StorageOptions,
    *,
    dry_run: bool,
    clock_skew: float = CLOCK_SKEW,
) -> Sweep | None:
    """Look for unreferenced files and, unless it is a dry run, delete them. The caller holds the table's lock.

    `clock_skew`: seconds by which the clocks of pump, maintainer and storage may differ.

    None: the table is not what it was, or is being copied. Raises LakeError when the storage fails, or when a pinned
    snapshot is not in the table's history, so that what it needs cannot be told.
    """
    now = time.time()
    before = now - policy.orphan_grace_hours * 3600
    metadata_before = now - policy.metadata_grace_hours * 3600
    if not dry_run and not begin_sweep(connection, slot, table, before + clock_skew):
        return None
    # Read after the declaration: every publish that did not heed it is in what is read now.
    present = read_tables(connection, slot, [table.table_id])
    if not present or present[0].start_lsn != table.start_lsn or present[0].copying:
        return None
    current = present[0]
    state = LakeTable.load(current.metadata_location, storage)
    oldest_pin = _oldest_pin(state, current)
    listed = [file for root in _roots(state) for file in list_files(root, storage)]
    named = current.locations_in_use | state.metadata.seam_locations
    candidates = sorted(
        (
            file
            for file in listed
            if file.location not in named
            and file.modified < (_limit(metadata_before, oldest_pin) if _is_metadata(file) else before)
        ),
        key=lambda file: file.modified,
    )[:_MOST_FILES]
    if not candidates:
        return Sweep((), len(listed), 0, deleted=not dry_run)
    lake_name = TableName(current.name.schema, current.lake_table)
    unreferenced = set(procedures.unreferenced(lake_name, [file.location for file in candidates]))
    found = tuple(file for file in candidates if file.location in unreferenced)
    if not dry_run:
        # Readers of the past pin a snapshot and then look whether it is in the history. So one that the pump thinned
        # out before fence 1 looked, and that somebody may read, is pinned by now, and found to be lost.
        present = read_tables(connection, slot, [table.table_id])
        if not present:
            return None
        pinned_snapshots(LakeTable.load(present[0].metadata_location, storage), present[0])
        _delete(found, storage)
    return Sweep(found, len(listed), len(candidates), deleted=not dry_run)


def _roots(state: LakeTable) -> Collection[str]:
    """Directories that hold files of this table only."""
    return {join(state.location, "data"), metadata_directory(state.metadata), seam_directory(state.metadata)}


def pinned_snapshots(state: LakeTable, table: MaintainedTable) -> list[Snapshot]:
    """The snapshots that readers have pinned. Raises LakeError if one is not in the table's history: what it needs
    cannot be told then, and no file may be deleted."""
    found: list[Snapshot] = []
    for snapshot_id in table.pinned:
        snapshot = state.metadata.snapshot(snapshot_id)
        if snapshot is None:
            raise LakeError(
                f"a reader has pinned snapshot {snapshot_id} of {table.name}, which is not in its history",
                "wait for the pin to expire (modak.read_pins), or delete it if its reader is gone",
            )
        found.append(snapshot)
    return found


def _oldest_pin(state: LakeTable, table: MaintainedTable) -> float | None:
    """When the oldest pinned snapshot was made, seconds since 1970; None if none is pinned."""
    return min((snapshot.timestamp_ms / 1000 for snapshot in pinned_snapshots(state, table)), default=None)


def _limit(before: float, oldest_pin: float | None) -> float:
    return before if oldest_pin is None else min(before, oldest_pin - _PIN_MARGIN)


def _is_metadata(file: StoredFile) -> bool:
    return file.location.endswith(_METADATA_SUFFIX)


def _delete(files: Sequence[StoredFile], storage: StorageOptions) -> None:
    def remove(location: str) -> None:
        delete(location, storage)

    locations: Iterable[str] = (file.location for file in files)
    with ThreadPoolExecutor(_PARALLEL_DELETES, thread_name_prefix="sweep") as pool:
        for _ in pool.map(remove, locations):
            pass
