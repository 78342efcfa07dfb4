"""Looks regularly at the lake tables: one without changes has no commit that would notice a missing metadata file, or
another engine's commit. Records the damaged files that other threads found."""

from __future__ import annotations

import time
from queue import Empty

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.presence import StoredTable
from mirror_pump.lake.storage import local_path, missing_files
from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.events import LakeFileMissing, LakeTableMoved
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.missing_files.damaged_files import forget_damage, is_repaired, record_damage, recorded_damage
from mirror_pump.pipeline.missing_files.missing_files import stored_tables
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.source.unchanged_server import UnchangedServer
from sql import queries

_SQL = queries("publish")

_SHARE = 0.01
"""The largest share of time spent looking. With very many tables the pauses get longer."""


class LakeWatch(ThreadedService):
    """A thread that reports missing files and moved pointers to the loop. The loop looks again and decides what they
    mean."""

    def __init__(self, context: SessionContext, shared: SharedConnection) -> None:
        """`shared`: for short queries of this thread and others."""
        self._context = context
        self._shared = shared
        self._inbox = context.inbox
        self._thread = session_thread(
            "lake watch", self._run, context.inbox, interrupt=lambda: context.damaged.put(None)
        )

    def _run(self) -> None:
        limits = self._context.settings.limits
        files_at = repairs_at = 0.0
        unchanged, tables, local, outdated = UnchangedServer(), list[StoredTable](), True, True
        while self._thread.next_round():
            began = time.monotonic()
            due = began >= files_at
            written = not unchanged.skips(self._shared.snapshot(limits.lake_watch_interval, woken=self._thread.woken))
            with self._shared.use() as connection:
                if written:
                    outdated = True
                    moved = connection.execute(_SQL["moved_by_others"], {"slot": self._context.slot}).fetchall()
                    for (table_id,) in moved:
                        self._inbox.put(LakeTableMoved(TableId(table_id)))
                    if not moved:
                        unchanged.nothing_left()
                if due and outdated:
                    tables, outdated = stored_tables(connection), False
                    local = all(local_path(table.location) is not None for table in tables)
            if due:
                self._look(tables)
                files_at = time.monotonic() + (0 if local else limits.lake_watch_interval_remote)
            if time.monotonic() >= repairs_at:
                self._forget_repaired()
                repairs_at = time.monotonic() + limits.lake_watch_interval_remote
            self._record_damage(max(limits.lake_watch_interval, (time.monotonic() - began) / _SHARE))

    def _record_damage(self, seconds: float) -> None:
        """Records a damaged file as soon as a thread reports one within this time."""
        try:
            damage = self._context.damaged.get(timeout=seconds)
        except Empty:
            return
        if damage is not None:
            with self._shared.use() as connection:
                record_damage(connection, *damage)

    def _forget_repaired(self) -> None:
        with self._shared.use() as connection:
            recorded = recorded_damage(connection, self._context.slot)
        for damage in recorded:
            if is_repaired(damage, self._context.storage):
                with self._shared.use() as connection:
                    forget_damage(connection, damage)

    def _look(self, tables: list[StoredTable]) -> None:
        named = {location: table for table in tables if not table.failed for location in table.metadata_files}
        try:
            missing = missing_files(named, self._context.storage)
        except LakeError:
            # The storage does not answer. The loop reports this error when it commits.
            return
        for location in missing:
            self._inbox.put(LakeFileMissing(named[location].table_id, location))
