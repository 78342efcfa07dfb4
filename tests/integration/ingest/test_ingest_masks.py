"""Ingests into tables with masks, columns that are left out and row filters: the heap has the rows of the files as an
INSERT would store them, and the lake what the rules make of these."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.ops.ingest.ingest_request import IngestRequest, OnError
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.row_files.row_batch import RowRefused
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.integration.types.test_masks import MARKER, assert_hidden
from tests.support.error_bounds import printed_seed
from tests.support.ingest_scene import csv_text
from tests.support.table_wishes import parse_choices

COLUMNS = "id bigint PRIMARY KEY, n int, secret text, short varchar(30), number bigint, price numeric(10,2), at date"
NAMES = ("id", "n", "secret", "short", "number", "price", "at")
_DIGEST = "encode(sha256(convert_to({0}::text, 'UTF8')), 'hex')"
MASKS = ["secret=sha256", "short=prefix(4)", "number=sha256", "price=sha256", "at=sha256", "doc=sha256"]
LAKE = (
    f"SELECT id, n, {_DIGEST.format('secret')}, left(short, 4), {_DIGEST.format('number')}, {_DIGEST.format('price')},"
    f" {_DIGEST.format('at')}, {_DIGEST.format('doc')} FROM t WHERE n % 2 = 0"
)


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    """With a table `t` under all rules, and `twin`, to which no rule applies."""
    database.execute(
        *(f"CREATE TABLE {name} ({COLUMNS}, doc text DEFAULT 'none {MARKER}', noise text)" for name in ("t", "twin")),
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", choices=parse_choices([], ["noise"], MASKS, where="n % 2 = 0"))
    mirror.catch_up()
    return mirror


def rows(chance: random.Random, keys: range) -> list[tuple[object, ...]]:
    """Rows with secrets in most columns, in forms that PostgreSQL prints otherwise as well."""
    return [
        (
            key,
            chance.randrange(10),
            chance.choice([None, f"{chance.randrange(5):08}{MARKER}é"]),
            chance.choice([None, f"{chance.randrange(5):08}{MARKER}"]),
            chance.choice([None, chance.randrange(-5, 5)]),
            chance.choice([None, "1.5", "007", "-0.00", "12.34"]),
            chance.choice([None, "2026-01-02"]),
        )
        for key in keys
    ]


def test_the_heap_has_the_values_and_the_lake_the_masks(mirror: Mirror, warehouse: str, tmp_path: Path) -> None:
    """CSV, JSON lines and Parquet, one after the other, with rows that replace others."""
    database, steps = mirror.database, Steps()
    chance = random.Random(printed_seed())
    with mirror.pumping(steps):
        for turn, kind in enumerate(("csv", "jsonl", "parquet")):
            content = rows(chance, range(turn * 30, turn * 30 + 60))
            path = tmp_path / f"rows.{kind}"
            if kind == "csv":
                path.write_text(csv_text(content, NAMES))
            elif kind == "jsonl":
                path.write_text("\n".join(json.dumps(dict(zip(NAMES, row, strict=True))) for row in content))
            else:
                columns = dict(zip(NAMES, map(list, zip(*content, strict=True)), strict=True))
                days = [None if text is None else datetime.date.fromisoformat(str(text)) for text in columns["at"]]
                pq.write_table(pa.table(columns | {"at": days}), path)
            outcome = ingest(mirror.settings, IngestRequest("t", (str(path),)))
            assert (outcome.rows, outcome.heap_rows, outcome.lake_rows) == (60, 60, 0)
            with database.connect() as connection, connection.cursor() as cursor:
                cursor.execute("DELETE FROM twin WHERE id BETWEEN %s AND %s", (turn * 30, turn * 30 + 59))
                with cursor.copy(f"COPY twin ({', '.join(NAMES)}) FROM STDIN (FORMAT csv, HEADER)".encode()) as copy:
                    copy.write(csv_text(content, NAMES))
            database.execute("DELETE FROM t WHERE id % 11 = 0", "DELETE FROM twin WHERE id % 11 = 0")
        mirror.await_frontier()
        assert_same(database.rows("SELECT * FROM twin"), database.rows("SELECT * FROM t"), "the heap")
        assert_same([tuple(row) for row in database.rows(LAKE)], mirror.lake("public.t"), "the lake")
    assert_hidden(mirror, warehouse, steps)


def test_a_refused_row_says_what_an_insert_would(mirror: Mirror, tmp_path: Path) -> None:
    """Of a masked column too, whose limits are those of PostgreSQL's type: the mask has none."""
    path, rejects = tmp_path / "rows.csv", tmp_path / "rejects.jsonl"
    path.write_text("id,n,short,number\n1,2,x,1\n2,2,y,many\n3,2," + "z" * 31 + ",3\n4,4,w,4\n")
    with pytest.raises(RowRefused, match="column number"):
        ingest(mirror.settings, IngestRequest("t", (str(path),)))
    request = IngestRequest("t", (str(path),), on_error=OnError.SKIP, rejects=rejects)
    assert ingest(mirror.settings, request).rejected == 2
    assert mirror.database.rows("SELECT id, short, number FROM t ORDER BY id") == [(1, "x", 1), (4, "w", 4)]
