"""All types, all schema changes, all row changes at once, with kills, faults, restarts and copies: the frontier is
exact.

Every frontier that is promised on the way is compared, with every row and column of every table. A trigger of the test
on the catalog records what was promised, whichever process did so, dead or alive.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.errors import CommitConflict, ConnectionLost
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, await_true, paced
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.error_bounds import SOAK_SECONDS, printed_seed
from tests.support.mixed_workload import MixedWriter, Palette, create_tables, lake_state

ROOT = Path(__file__).parents[2]

SECONDS = 6.0
_MOST_EMPTY_WORLDS = 5
WORLD_SECONDS = 40.0
"""How long one database and its tables are used: then tables are large and settled, and new ones find more."""

_SETTLE = 90.0
"""Seconds within which the mirror has to catch up when nobody writes."""

_STEPS = (
    Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED, Step.ACKNOWLEDGED, Step.COPY_PLANNED, Step.CHUNK_COPIED,
    Step.CHUNKS_PUBLISHED, Step.LIVE, Step.CONVERTING, Step.POSITIONS_WRITTEN, Step.CONVERTED, Step.MERGING,
    Step.MERGE_WRITTEN, Step.MERGED, Step.INDEX_BUILDING, Step.INDEX_READY, Step.TABLE_CHANGED, Step.TABLE_COPIED_AGAIN,
)  # fmt: skip
"""Steps at which pumps are killed, or their connections lost."""

_LED = "SELECT FROM pg_stat_activity WHERE application_name = 'mirror-pump-leader' AND datname = current_database()"

# At the end of the transaction: a publish moves the published snapshot and the frontier one after the other.
_AUDIT = """
CREATE TABLE audit.points (seen bigserial, table_id bigint, frontier bigint, location text);
CREATE FUNCTION audit.point() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.points (table_id, frontier, location)
    SELECT table_id, replicated_lsn, lake_props ->> 'metadata_location' FROM modak.cutline
     WHERE table_id = NEW.table_id AND replicated_lsn IS NOT NULL; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER point AFTER INSERT OR UPDATE ON modak.cutline DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  EXECUTE FUNCTION audit.point();
"""


@dataclass
class World:
    """One database with its mirror and its writer."""

    mirror: Mirror
    gate: GatedCopies
    writer: MixedWriter
    chance: random.Random
    found: Counter[str]
    """What happened, for the report."""
    _seen: int = 0
    _rows: dict[str, Any] = field(default_factory=dict)

    @property
    def database(self) -> Database:
        return self.mirror.database

    def push(self, until: float) -> None:
        """Runs random transactions until then, at least, with a pump that is repeatedly stopped, killed or
        disturbed."""
        while True:
            self.chance.choice([self._pumped, self._pumped, self._killed, self._unwatched])()
            if time.monotonic() > until:
                return

    def settle(self) -> None:
        """Lets a pump catch up, then compares every frontier since the last time."""
        self.gate.let_go()
        steps = Steps()
        with self.mirror.pumping(steps):
            deadline = time.monotonic() + _SETTLE
            while True:
                self.mirror.await_frontier(seconds=_SETTLE)
                states = self.database.rows("SELECT table_id, state, error FROM modak.mirror_tables ORDER BY 1")
                assert all(state != "failed" for _, state, _ in states), states
                if {table_id for table_id, state, _ in states if state == "live"} == set(self.writer.table_ids):
                    break
                assert time.monotonic() < deadline, f"not within {_SETTLE} s: {states}"
            self.mirror.await_frontier(seconds=_SETTLE)
        self.found["copied again"] += steps.count(Step.TABLE_COPIED_AGAIN)
        self._compare()
        self.mirror.assert_sound()
        self.writer.forget()
        self._rows.clear()

    def _compare(self) -> None:
        points = self.database.rows(
            "SELECT table_id, frontier, location, max(seen) FROM audit.points WHERE seen > %s GROUP BY 1, 2, 3"
            " ORDER BY 4",
            (self._seen,),
        )
        problems = []
        with duckdb_connection() as duckdb:
            for table_id, frontier, location, seen in points:
                self._seen = max(self._seen, seen)
                if location not in self._rows:
                    self._rows[location] = lake_state(location, duckdb)
                    self.found["rows"] += len(self._rows[location][1])
                columns, rows = self._rows[location]
                possible = self.writer.history.possible(table_id, frontier)
                if (columns, rows) in [(state.columns, state.rows) for state in possible]:
                    continue
                wanted = possible[0]
                missing, extra = Counter(wanted.rows) - Counter(rows), Counter(rows) - Counter(wanted.rows)
                problems.append(
                    f"table {self.writer.table_ids[table_id]} ({table_id}) at F = {frontier}, {location}:\n"
                    f"  columns {columns}, wanted {wanted.columns}\n"
                    f"  missing {missing.total()}: {str([*missing][:2])[:1500]}\n"
                    f"  extra {extra.total()}: {str([*extra][:2])[:1500]}"
                )
        live = self.database.rows(
            "SELECT table_id FROM modak.cutline WHERE replicated_lsn = (SELECT max(frontier) FROM audit.points)"
        )
        assert {row[0] for row in live} == set(self.writer.table_ids), "the last frontier is every table's"
        assert not problems, f"{len(problems)} of {len(points)} points\n" + "\n".join(problems[:3])
        self.found["points"] += len(points)

    def _options(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "segment_bytes": chance.choice([1, 400, 5000, 1 << 20]),
            "batch_bytes": chance.choice([1, 3000, 1 << 24]),
            "copy_chunk_bytes": chance.choice([8192, 24_000]),
            "copy_workers": chance.choice([1, 3]),
            "convert_age": chance.choice([0.0, 0.3]),
            "index_memory": chance.choice([1 << 30, 1 << 30, 3 << 20, 0]),
            "merge_bytes": chance.choice([1 << 25, 4000, 0]),
        }

    def _write(self, transactions: int, alive: Callable[[], bool] = lambda: True) -> None:
        for _ in range(transactions):
            if not alive():
                return
            match self.chance.randrange(40):
                case 0:
                    self.writer.rewrite()
                case 1:
                    self.writer.label()
                case _:
                    self.writer.transaction()

    def _unwatched(self) -> None:
        """Nobody reads the stream meanwhile."""
        self._write(self.chance.randint(1, 6))

    def _pumped(self) -> None:
        chance = self.chance
        left = chance.randint(1, 4)
        at = chance.choice(_STEPS) if chance.random() < 0.6 else None
        error = chance.choice([ConnectionLost, CommitConflict])

        def on_step(step: Step, _details: dict[str, object]) -> None:
            nonlocal at, left
            if step is at:
                left -= 1
                if not left:
                    at = None
                    self.found["faults"] += 1
                    raise error(f"planted at {step.value}")

        steps = Steps(on_step)
        if chance.random() < 0.3:
            self.gate.hold()
        mirror = self.mirror.with_options(limits=paced(chance.choice([0.0, 0.02, 0.2])), **self._options())
        with mirror.pumping(steps):
            for _ in range(chance.randint(1, 4)):
                self._write(chance.randint(1, 4))
                self.gate.let_go(chance.randint(0, 2))
                if chance.random() < 0.2:
                    # A table is unregistered, and registered again.
                    name = self.writer.table(chance.choice(list(self.writer.table_ids)))
                    mirror.unregister(name)
                    mirror.register(name)
                    self.found["registered again"] += 1
                if chance.random() < 0.4:
                    mirror.await_frontier(seconds=_SETTLE)
            if chance.random() < 0.7:
                self.gate.let_go()
        self.gate.let_go()
        self.found["pumps"] += 1
        self.found["copied again"] += steps.count(Step.TABLE_COPIED_AGAIN)
        self.found["changes followed"] += steps.count(Step.TABLE_CHANGED)

    def _killed(self) -> None:
        """A pump in a separate process that dies by kill -9: at a given step, or at a random time."""
        settings = self.mirror.settings
        options = {"storage_fsync": False, **self._options()}
        command = [
            sys.executable, "-m", "tests.support.run_and_die", settings.dsn, settings.require_warehouse(),
            settings.slot, self.chance.choice(_STEPS), str(self.chance.randint(1, 3)), "threads",
            *(f"{name}={value}" for name, value in options.items()),
        ]  # fmt: skip
        with tempfile.TemporaryFile("w+") as output:
            pump = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=output)
            self._write(self.chance.randint(2, 12), alive=lambda: pump.poll() is None)
            with contextlib.suppress(subprocess.TimeoutExpired):
                pump.wait(self.chance.random() * 4)
            pump.kill()
            pump.wait()
            # The server notices a moment later; until then nobody else can lead.
            await_true(lambda: not self.database.rows(_LED), 20, "the lead is free")
            output.seek(0)
            # 0: it had caught up before that step.
            assert pump.returncode in (-signal.SIGKILL, 0), output.read()[-3000:]
        self.found["killed"] += pump.returncode != 0


def _play(database: Database, warehouse: str, chance: random.Random, seconds: float, found: Counter[str]) -> None:
    palette = Palette.of(database)
    print(*create_tables(database, palette, chance), sep="\n")
    runner = ThreadTaskRunner(3)
    gate = GatedCopies(runner)
    mirror = Mirror.create(database, warehouse, gate, reconnect_backoff_max=0.3)
    with database.connect() as connection:
        connection.execute(_AUDIT)
    with connect(database.dsn, autocommit=True) as connection:
        writer = MixedWriter(connection, chance, palette)
        world = World(mirror, gate, writer, chance, found)
        deadline = time.monotonic() + seconds
        try:
            for _ in range(4):
                writer.transaction()
            mirror.register(*(writer.table(table_id) for table_id in writer.table_ids))
            while time.monotonic() < deadline:
                world.push(min(deadline, time.monotonic() + 10))
                world.settle()
            found["tables verified"] += assert_verified(database)
        except BaseException:
            print("\n".join(writer.done[-150:]), file=sys.stderr)
            raise
        finally:
            found["statements"] += writer.committed
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SECONDS, id="short"),
        pytest.param(SOAK_SECONDS, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(SOAK_SECONDS + 300)]),
    ],
)
def test_every_promised_frontier_is_exact(postgres: EmbeddedPostgres, tmp_path: Path, seconds: float) -> None:
    chance = random.Random(printed_seed())
    found: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    # In so short a time, a world may have kept no row: then it says nothing of rows, and another one begins.
    while (left := deadline - time.monotonic()) > 0 or (not found["rows"] and found["worlds"] < _MOST_EMPTY_WORLDS):
        found["worlds"] += 1
        warehouse = tmp_path / f"lake{found['worlds']}"
        warehouse.mkdir()
        name = f"t_mixed_{found['worlds']}"
        with postgres.database(name):
            lifetime = min(max(left, seconds / 2), WORLD_SECONDS)
            _play(Database(postgres, name), warehouse.as_uri(), chance, lifetime, found)
        print(dict(found), file=sys.stderr, flush=True)
    assert found["points"] > 3
    assert found["rows"] > 0
