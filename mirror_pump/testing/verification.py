"""What tests end with: the product's own `verify` of every live table, with DuckDB in the place of Spark.

Everything else is as a user's `verify` does it: the heap by a consistent point's snapshot into a scratch Iceberg table,
F and S of one moment, the temporary slot's stream laid over, then every column of every row compared as a multiset.
Only who compares differs, since a Spark of its own would take each test ten seconds; DuckDB is as little ours as Spark
is, and applies the delete files by itself.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from decoders.columns import Kind
from mirror_pump.config import Settings
from mirror_pump.engine.runner import SparkTaskRunner
from mirror_pump.lake.cutline import CutLine
from mirror_pump.lake.schema import LakeField, LakeSchema
from mirror_pump.lake.sidecars import every_sidecar
from mirror_pump.ops.compare import Comparison, compare
from mirror_pump.ops.verify import Engine, verify
from mirror_pump.quoting import identifier
from mirror_pump.source.connect import connect
from mirror_pump.source.leader import is_led
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

_SHOWN = 5
"""Differing rows of each side that a report names."""


def assert_verified(database: Database) -> int:
    """Fails unless every live table of each mirror in the database equals its heap; returns how many tables there were.

    Where no pump runs, one does for as long as this takes. A mirror whose slot is gone has nothing to be compared by.
    """
    return sum(_verified(database, *one) for one in _mirrors(database))


def spark_report(settings: Settings, spark: SparkSession) -> dict[str, Any]:
    """What `mirror-pump verify --json` prints: all of it is as there, but that its Spark is not started for it."""
    runner = SparkTaskRunner(spark, 2)
    return verify(settings, engine=Engine(runner, partial(compare, spark))).to_json()


def _mirrors(database: Database) -> list[tuple[str, str, str]]:
    """Slot, publication and warehouse of each mirror that has live tables and its slot."""
    if database.rows("SELECT to_regclass('modak.mirror_slots')::text") == [(None,)]:
        return []
    return database.rows(
        "SELECT s.slot_name, s.publication_name, p.warehouse FROM modak.mirror_slots s"
        "  JOIN modak.storage_profiles p ON p.is_default JOIN pg_replication_slots r USING (slot_name)"
        " WHERE EXISTS (SELECT FROM modak.mirror_tables m WHERE m.slot_name = s.slot_name AND m.state = 'live')"
        "   AND r.wal_status <> 'lost' ORDER BY 1"
    )


def _verified(database: Database, slot: str, publication: str, warehouse: str) -> int:
    settings = Settings(
        dsn=database.dsn, slot=slot, publication=publication, warehouse=warehouse, storage_fsync=False, batch_age=0.0
    )
    tasks = ThreadTaskRunner()
    try:
        with connect(database.dsn, autocommit=True) as connection:
            led = is_led(connection, slot)
        with nullcontext() if led else Mirror(database, settings, tasks).pumping(), duckdb_connection() as duckdb:
            report = verify(settings, engine=Engine(tasks, partial(compare_by_duckdb, duckdb)))
    finally:
        tasks.close()
    # A copy that goes on now is nobody's: only what can be compared counts.
    compared = [table for table in report.tables if table.comparison is not None]
    different = [table.to_json() for table in compared if not table.equal]
    assert not different, f"heap and lake differ at F = {report.frontier}: {different}"
    return len(compared)


def compare_by_duckdb(
    duckdb: DuckDBPyConnection,
    heap_location: str,
    lake_location: str,
    schema: LakeSchema,
    line: CutLine | None = None,
) -> Comparison:
    """As `mirror_pump.ops.compare.compare`; a row that has other values counts on both sides."""
    views = {"heap": heap_location, "lake": lake_location}
    counts, present = {}, {}
    compared = "" if line is None else f" WHERE {_tier_value(line)} >= {line.cut}"
    for view, location in views.items():
        # A table rather than a view: each of the queries below would scan the files anew.
        duckdb.execute(f"CREATE OR REPLACE TEMP TABLE {view} AS SELECT * FROM iceberg_scan('{location}'){compared}")
        present[view] = {row[0] for row in duckdb.execute(f"DESCRIBE {view}").fetchall()}
        counts[view] = duckdb.execute(f"SELECT count(*) FROM {view}").fetchall()[0][0]
    fields = [field for field in every_sidecar(schema).fields if field.name in present["heap"] | present["lake"]]
    assert {field.name for field in schema.fields} <= present["heap"] & present["lake"]
    rows = {view: f"SELECT {_exact(fields, present[view])} FROM {view}" for view in views}
    different = 0
    shown = []
    for kind, one, other in (("missing", "heap", "lake"), ("extra", "lake", "heap")):
        beyond = f"({rows[one]} EXCEPT ALL {rows[other]})"
        number = duckdb.execute(f"SELECT count(*) FROM {beyond}").fetchall()[0][0]
        if not number:
            continue
        different += number
        texts = ", ".join(f"left({identifier(field.name)}::text, 200)" for field in fields)
        found = duckdb.execute(f"SELECT {texts} FROM {beyond} LIMIT {_SHOWN}").fetchall()
        shown += [
            {"kind": kind, "columns": dict(zip((field.name for field in fields), row, strict=True))} for row in found
        ]
    duckdb.execute("DROP TABLE heap; DROP TABLE lake")
    return Comparison(counts["heap"], counts["lake"], different, tuple(shown))


def _tier_value(line: CutLine) -> str:
    """The tier key as the number that T is."""
    name = identifier(line.name)
    match line.type.kind:
        case Kind.DATE:
            return f"({name} - DATE '1970-01-01')"
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return f"epoch_us({name})"
        case _:
            return name


def _exact(fields: list[LakeField], present: set[str]) -> str:
    """The columns such that equal means the same value: -0.0 and 0.0 are equal as numbers. NULL where there is none."""
    selected = []
    for field in fields:
        name = identifier(field.name)
        floating = (field.type.element or field.type).kind in (Kind.FLOAT, Kind.DOUBLE)
        expression = "NULL::text" if field.name not in present else f"{name}::text" if floating else name
        selected.append(f"{expression} AS {name}")
    return ", ".join(selected)
