"""A table with heap retention whose partitions a test seals, and whose cut-line it moves, through a running pump."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from mirror_pump.pipeline.flow.events import AdvanceWanted
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import connect
from mirror_pump.testing.mirror import Mirror, RunningPump, await_true
from tests.support.retention import WIDTH, RetentionTable


@dataclass
class ManualRetention(RetentionTable):
    """With a default partition; partitions are sealed, and the cut-line is moved, by the test."""

    sealed: int = 0
    """Partitions that the cut-line has passed."""

    @classmethod
    def create(cls, mirror: Mirror, partitions: int = 3, rows: int = 50) -> ManualRetention:
        """Creates and registers the table with `rows` rows a partition; a pump has to copy it."""
        self = cls(mirror, partitions)
        self.create_tables(rows, large=True)
        mirror.database.execute("CREATE TABLE p_default PARTITION OF events DEFAULT")
        mirror.register("public.events")
        self.retain()
        return self

    def retain(self) -> None:
        """Records the table's retention in the catalog, as the service would."""
        with self.mirror.database.connect(autocommit=False) as connection:
            connection.execute("UPDATE modak.tables SET heap_retention_lag = 0 WHERE table_id = %s", (self.table_id,))
            for number in range(self.partitions):
                connection.execute(
                    "INSERT INTO modak.partitions"
                    " (table_id, partition_id, tier_key_lo, tier_key_hi, state, relation_id)"
                    " VALUES (%s, %s, %s, %s, 'hot', to_regclass(%s)::oid::bigint)",
                    (self.table_id, f"p{number}", number * WIDTH, (number + 1) * WIDTH, f"p{number}"),
                )
            connection.execute(
                "SELECT modak.retain_triggers(%s, 'p_default'::regclass, 'default', 'default')", (self.table_id,)
            )

    def seal(self) -> None:
        """Begins the way out of the next partition."""
        with self.mirror.database.connect(autocommit=False) as connection:
            connection.execute("SELECT modak.seal(%s, %s)", (self.table_id, f"p{self.sealed}"))
        self.mirror.database.rows("SELECT 1")
        with self.mirror.database.connect() as connection:
            connection.execute(
                "UPDATE modak.partitions SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint"
                " WHERE table_id = %s AND partition_id = %s AND state = 'sealing'",
                (self.table_id, f"p{self.sealed}"),
            )

    def ask(self, running: RunningPump) -> str | None:
        """Asks the pump once for the cut-line to pass the sealed partition; why not, or None."""
        with connect(self.mirror.database.dsn, autocommit=True) as connection:
            table = load_table(connection, self.table_id)
        assert table is not None
        name = f"p{self.sealed}"
        answer: Future[str | None] = Future()
        running.pump.submit(AdvanceWanted(table, AdvanceCutline(name, (self.sealed + 1) * WIDTH), answer))
        await_true(answer.done, 30, "an answer to the advance")
        return "the session ended" if answer.cancelled() else answer.result()

    def advance(self, running: RunningPump) -> None:
        """Has the pump move the cut-line past the next partition."""
        self.seal()
        self.finish_advance(running)

    def finish_advance(self, running: RunningPump) -> None:
        """Has the pump move the cut-line past the partition that is sealed."""
        self.mirror.await_frontier()
        await_true(lambda: self.ask(running) is None, 30, "the cut-line moved")
        self.sealed += 1
