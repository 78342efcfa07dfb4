"""Deletes files of a table that nothing refers to. Safeguards keep files that a reader or writer may still need:

1. Reachability. What the table's metadata names, in any retained snapshot, branch, tag or log, stays. Iceberg's own
   procedure decides that, in a dry run. Of change feeds, which only the mirror writes, the mirror knows all files.
2. Grace. Files younger than the policy's grace stay, since other engines write files before they commit them.
3. The declared sweep (`begin_sweep`). A publish that was delayed for longer than the grace, or whose outcome was
   unknown, cannot name a swept file afterwards: it fails, and its batch is received again. Safeguard 1 looks later, and
   so sees all publishes that landed before. The metadata that a publish stages is at most 20 minutes old when it lands
   (sql/queries/publish.sql, touch_tables), and the grace of metadata files is at least 30 minutes.
4. Pins and published locations. Metadata files that the catalog names stay, and so do all that are newer than the
   oldest pinned snapshot, since its reader may open the metadata file that it was given again. Of change feeds all
   files stay that are newer: the reader of a pin writes slices and metadata beside the feed, for as long as it pins it.
5. Numbers. A metadata file with a higher number than the one that the catalog names may be in a publish under way, and
   stays, however old its time says that it is: a clock may have been set.
6. Copied partitions. Files of a tiered table's chunks that the catalog names stay until a publish has brought them, or
   they are forgotten (mirror_pump/source/retention/partition_chunks.py). A file is not recorded any more if a declared
   sweep may have taken it for unreferenced.
7. The catalog's age. A sweep is refused on a server that no pump has followed to, and while there are files of
   publishes that the catalog does not know: a restored copy would delete its original's (docs/design/failover.md).

No decision relies on one clock alone: the present is the earlier one of the server's clock and this machine's, and
files may bear times that are off by CLOCK_SKEW.

A table is not swept during its initial copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import metadata_directory, metadata_number, seam_directory
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.storage import StorageOptions, StoredFile, delete, join, list_files
from mirror_pump.model import SnapshotId, TableName
from mirror_pump.pipeline.session.lost_publishes import refuse_restored_copy
from mirror_pump.settings.policy import Policy
from mirror_pump.source.catalog.change_feeds import ChangeFeed
from mirror_pump.source.catalog.maintenance import MaintainedTable, begin_sweep, read_tables, safe_time
from mirror_pump.source.connect import PgConnection

CLOCK_SKEW = 4200.0
"""Seconds by which the clocks of pump, maintainer and storage may differ: ten minutes, and a jump of an hour."""
PIN_MARGIN = 3600.0
"""Seconds by which a metadata file may be older than its snapshot."""
_MOST_FILES = 200_000
"""Maximum number of candidates of one sweep, since they pass through Spark's driver. The oldest come first, and the
next sweep continues."""
_PARALLEL_DELETES = 8
_METADATA_SUFFIX = ".metadata.json"


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep or of its dry run."""

    files: tuple[StoredFile, ...]
    """Files that nothing refers to and nothing protects."""
    listed: int
    """Number of files below the table's location."""
    candidates: int
    """Number of files that are old enough, and not named by the catalog."""
    deleted: bool
    """False after a dry run."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class SweptState:
    """What a sweep finds of a table at one moment."""

    table: LakeTable
    named: frozenset[str]
    """URIs of files that the catalog names."""
    pinned: Sequence[Snapshot]
    """Snapshots that readers have pinned."""


@dataclass(frozen=True)
class SweptTable(ABC):
    """A table whose files are swept: what differs between mirrored tables and change feeds."""

    connection: PgConnection
    slot: str
    storage: StorageOptions
    name: TableName
    pins_hold_data: ClassVar[bool] = False
    """Whether the readers of pinned snapshots may have written files of rows below the table's location."""

    @abstractmethod
    def declare(self, before: float) -> bool:
        """Declares that older files may be deleted. Returns False if there is nothing to sweep any more."""

    @abstractmethod
    def current(self) -> SweptState | None:
        """None if there is nothing to sweep any more. Raises LakeError if a pinned snapshot is not in the table's
        history, since the files that it needs are unknown then."""

    @abstractmethod
    def roots(self, state: SweptState, /) -> Collection[str]:
        """Directories that hold files of this table only."""

    @abstractmethod
    def unreferenced(self, candidates: Collection[str]) -> Collection[str]:
        """Those of the files that no snapshot in the table's history names now."""


@dataclass(frozen=True)
class SweptMirror(SweptTable):
    """A mirrored table. There is nothing to sweep if it was registered again or is being copied."""

    table: MaintainedTable
    procedures: Procedures

    def declare(self, before: float) -> bool:
        return begin_sweep(self.connection, self.slot, self.table, before)

    def current(self) -> SweptState | None:
        (table,) = read_tables(self.connection, self.slot, [self.table.table_id]) or (None,)
        if table is None or table.start_lsn != self.table.start_lsn or table.copying:
            return None
        state = LakeTable.load(table.metadata_location, self.storage)
        named = table.locations_in_use | state.metadata.seam_locations | table.copied_files
        return SweptState(state, named, pinned_snapshots(state, table))

    def roots(self, state: SweptState, /) -> Collection[str]:
        metadata = state.table.metadata
        return {join(state.table.location, "data"), metadata_directory(metadata), seam_directory(metadata)}

    def unreferenced(self, candidates: Collection[str]) -> Collection[str]:
        lake_name = TableName(self.name.schema, self.table.lake_table)
        return self.procedures.unreferenced(lake_name, list(candidates))


def sweep(
    table: SweptTable, policy: Policy, *, dry_run: bool, clock_skew: float = CLOCK_SKEW, pin_margin: float = PIN_MARGIN
) -> Sweep | None:
    """Find unreferenced files and, unless it is a dry run, delete them. The caller holds the table's lock.

    `clock_skew`: seconds by which the clocks of pump, maintainer and storage may differ. `pin_margin`: seconds by which
    a file that the reader of a pinned snapshot needs may be older than the snapshot.

    Returns None if there is nothing to sweep any more. Raises LakeError if the storage fails, or if a pinned snapshot
    is not in the table's history, and SourceError on a restored copy.
    """
    now = safe_time(table.connection)
    before = now - policy.orphan_grace_hours * 3600
    metadata_before = now - policy.metadata_grace_hours * 3600
    if not dry_run and not table.declare(before + clock_skew):
        return None
    # Read after the declaration, so that this sees every publish that did not obey it.
    state = table.current()
    if state is None:
        return None
    if not dry_run:
        refuse_restored_copy(table.connection, table.slot, table.name, state.table.metadata_location, table.storage)
    listed = [file for root in table.roots(state) for file in list_files(root, table.storage)]
    # Read again: what a commit names, or a reader pins, before its files are listed is seen.
    state = table.current()
    if state is None:
        return None
    pinned = min((snapshot.timestamp_ms / 1000 - pin_margin for snapshot in state.pinned), default=now)
    metadata_before = min(metadata_before, pinned)
    before = min(before, pinned) if table.pins_hold_data else before
    candidates = sorted(
        (
            file
            for file in listed
            if file.location not in state.named
            and not _may_be_staged(file, state.table)
            and file.modified < (metadata_before if _is_metadata(file) else before)
        ),
        key=lambda file: file.modified,
    )[:_MOST_FILES]
    if not candidates:
        return Sweep((), len(listed), 0, deleted=not dry_run)
    unreferenced = frozenset(table.unreferenced([file.location for file in candidates]))
    files = tuple(file for file in candidates if file.location in unreferenced)
    if not dry_run:
        # Readers of past snapshots pin one first, and then check that it is in the history. So if a reader may use a
        # snapshot that the pump removed from the history before safeguard 1 looked, it is pinned by now, and this
        # raises.
        if table.current() is None:
            return None
        _delete_all(files, table.storage)
    return Sweep(files, len(listed), len(candidates), deleted=not dry_run)


def pinned_snapshots(state: LakeTable, table: MaintainedTable | ChangeFeed) -> list[Snapshot]:
    """The snapshots that readers have pinned. Raises LakeError if one is not in the table's history: the files that it
    needs are unknown then, so no file may be deleted."""
    name, pins = (table.lake_name, "feed_pins") if isinstance(table, ChangeFeed) else (table.name, "read_pins")
    snapshots: list[Snapshot] = []
    for snapshot_id in table.pinned:
        snapshot = state.metadata.snapshot(SnapshotId(snapshot_id))
        if snapshot is None:
            raise LakeError(
                f"a reader has pinned snapshot {snapshot_id} of {name}, which is not in its history",
                f"wait for the pin to expire (modak.{pins}), or delete it if its reader is gone",
            )
        snapshots.append(snapshot)
    return snapshots


def _is_metadata(file: StoredFile) -> bool:
    return file.location.endswith(_METADATA_SUFFIX)


def _may_be_staged(file: StoredFile, state: LakeTable) -> bool:
    """Whether it is a metadata file that a publish may be about to name. Such a publish builds on the present metadata,
    or on a later one, and gives its files the next number."""
    if not _is_metadata(file):
        return False
    number = metadata_number(file.location)
    if file.location.startswith(f"{seam_directory(state.metadata)}/"):
        return number is not None and number > state.metadata.last_sequence_number
    current_number = metadata_number(state.metadata_location)
    return number is not None and current_number is not None and number > current_number


def _delete_all(files: Sequence[StoredFile], storage: StorageOptions) -> None:
    def remove(location: str) -> None:
        delete(location, storage)

    locations: Iterable[str] = (file.location for file in files)
    with ThreadPoolExecutor(_PARALLEL_DELETES, thread_name_prefix="sweep") as pool:
        for _ in pool.map(remove, locations):
            pass
