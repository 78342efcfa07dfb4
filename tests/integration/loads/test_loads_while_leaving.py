"""Loads, and other writers, while partitions are sealed, copied, passed, proven and dropped: every read is exact."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from mirror_pump.source.loads import labels
from mirror_pump.source.loads.filtered_rows import RowFilter
from mirror_pump.source.loads.load_target import read_target
from mirror_pump.source.loads.load_writes import LoadMode, LoadWrites
from mirror_pump.source.loads.staging import StagingTable
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import await_true
from tests.support.error_bounds import printed_seed
from tests.support.events_table import EventsTable
from tests.support.pipeline import writing
from tests.support.retention_table import run
from tests.support.tiered import TieredTables


@pytest.fixture
def tiered_tables(database: Database, warehouse: str) -> Iterator[TieredTables]:
    """Creates mirrors with a tiered table, or with one with heap retention."""
    tables = TieredTables(database, warehouse)
    yield tables
    tables.close()


def load_some(events: EventsTable, connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """A load of rows anywhere in the table, in the open transaction, which changes the model as well."""
    mode = chance.choice((LoadMode.UPSERT, LoadMode.UPSERT, LoadMode.DELETE))
    target = read_target(connection, "events")
    staging = StagingTable(connection, target.chosen(("at", "id", "n", "v"), key_only=mode is LoadMode.DELETE))
    top = events.partitions * events.width
    keys = [(chance.randrange(top), chance.randrange(60)) for _ in range(chance.choice((1, 30, 300)))]
    rows = {key: (chance.randrange(1000), f"{chance.random()}") for key in keys}
    row_filter = RowFilter("events", 0)
    texts = {
        "number": pa.array(range(1, len(keys) + 1)),
        "at": pa.array([str(at) for at, _ in keys]),
        "id": pa.array([str(id_) for _, id_ in keys]),
    }
    if mode is not LoadMode.DELETE:
        texts |= {"n": pa.array([str(rows[key][0]) for key in keys]), "v": pa.array([rows[key][1] for key in keys])}
    staging.add(pa.table(texts), row_filter)
    label = os.urandom(8).hex()
    assert labels.begin(connection, target, label, {}) is None
    counts = LoadWrites(connection, target, staging, mode, row_filter).write()
    assert counts.superseded == len(keys) - len(rows)
    for (at, id_), (n, v) in rows.items():
        run(connection, f"DELETE FROM model WHERE (at, id) = ({at}, {id_})")
        if mode is LoadMode.UPSERT:
            run(connection, f"INSERT INTO model VALUES ({at}, {id_}, {n}, '{v}')")
    labels.finish(connection, target, label, {"content": {}})


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("retention", marks=pytest.mark.soak),
        pytest.param("tiered", marks=pytest.mark.soak),
        # Its old partitions stay, with the triggers that a load goes round.
        "keep-heap",
    ],
)
def test_every_read_is_exact_while_partitions_leave(tiered_tables: TieredTables, kind: str) -> None:
    if kind == "retention":
        events = tiered_tables.automatic(rows=300, fold_age=0.3)
    else:
        events = tiered_tables.tiered(rows=300, keep_heap=kind == "keep-heap", fold_age=0.3)
    mirror, database = events.mirror, events.mirror.database

    def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        if chance.random() < 0.4:
            events.write(connection, chance)
        else:
            load_some(events, connection, chance)

    last = "tiered" if kind == "keep-heap" else "dropped"
    with duckdb_connection() as duckdb:
        with mirror.pumping(), writing(database, write, printed_seed()) as written:

            def left() -> bool:
                events.assert_exact(duckdb)
                states = events.states()
                return states.get("p0") == states.get("p1") == last

            await_true(left, 120, f"p0 and p1 {last}: {events.explained()}")
            count = written()
            await_true(lambda: written() > count + 20, 60, "loads go on")
        events.assert_exact(duckdb)
    assert database.rows("SELECT count(*) FROM modak.mirror_load_rows") == [(0,)]
    assert database.rows("SELECT count(*) > 5 FROM modak.load_labels") == [(True,)]
