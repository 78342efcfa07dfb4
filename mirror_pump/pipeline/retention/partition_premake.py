"""Creates partitions above the newest key in advance, for tables whose owner set `premake`."""

from __future__ import annotations

import psycopg

from mirror_pump.backoff import Backoff, Retries
from mirror_pump.model import MirroredTable, TableId, TierKind
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.retention.newest_keys import NewestKeys
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention import new_partitions
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import RetentionChoices


class Premaker:
    """Creates the partitions. Reports failures in the catalog and to the observer, since the application's INSERTs fail
    without a partition for their rows."""

    def __init__(self, newest: NewestKeys, observer: Observer, backoff: Backoff) -> None:
        self._newest = newest
        self._observer = observer
        self._backoff = backoff
        self._refusals: dict[TableId, Retries] = {}

    def forget_pauses(self) -> None:
        """Retry immediately, on request. Any thread may call it."""
        self._refusals.clear()

    def make(self, connection: PgConnection, table: MirroredTable, choices: RetentionChoices) -> bool:
        """Returns whether a partition was made."""
        assert table.tier is not None
        refusals = self._refusals.get(table.table_id)
        if refusals is not None and not refusals.due:
            return False
        wanted: list[tuple[int, int]] = []
        if choices.premake and choices.width is not None:
            attached = source.read_attached(connection, table.table_id)
            newest = None
            if table.tier.kind is TierKind.BIGINT:
                newest = self._newest.of(connection, table.table_id, table.tier, attached)
            wanted = new_partitions.wanted_partitions(table.tier, newest, attached, choices)
        for made, (lo, hi) in enumerate(wanted):
            name = new_partitions.premade_name(table.name, table.tier.kind, lo)
            refused = new_partitions.make_partition(connection, table.name, name, table.tier.kind, lo, hi)
            if refused is not None:
                self._refused(connection, table, str(name), refused)
                return made > 0
        self._refusals.pop(table.table_id, None)
        if choices.not_made is not None:
            self._note(connection, table, None)
        return bool(wanted)

    def _refused(self, connection: PgConnection, table: MirroredTable, name: str, reason: str) -> None:
        self._refusals.setdefault(table.table_id, Retries(self._backoff)).failed()
        self._note(connection, table, f"partition {name} was not made: {reason}")
        self._observer(Step.RETENTION_REFUSED, table=str(table.name), partition=name, reason=reason)

    @staticmethod
    def _note(connection: PgConnection, table: MirroredTable, reason: str | None) -> None:
        try:
            source.run(connection, "not_made", {"table_id": table.table_id, "reason": reason})
        except psycopg.errors.LockNotAvailable:
            # The row is being changed. The next attempt reports it again.
            return
