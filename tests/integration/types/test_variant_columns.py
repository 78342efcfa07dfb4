"""`register --column doc=variant`: documents of json and jsonb in variant columns, whatever way they take.

The oracle is PostgreSQL: what it prints of a document's jsonb. Spark reads the columns beside the mirror's own decoder.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from decoders.variant_texts import document_text
from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.model import FeedMode, Lsn
from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.moments.checking import CheckResult, check
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.ops.reads.query import Query
from mirror_pump.ops.reads.query_results import run_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.reads.time_travel import PastPoint
from mirror_pump.ops.register.declaration import export
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.register.preview import preview
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.ops.verify import compare_duckdb
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.spark.reader import read
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified, spark_report
from tests.support.cli import RunCommand
from tests.support.drift import drift
from tests.support.error_bounds import printed_seed
from tests.support.maintenance import Maintained
from tests.support.resyncs import repairs, resynced
from tests.support.table_wishes import parse_choices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENTS = (
    '{"a": [1, 2.50, null, true, "x"], "b": {"c": 12345678901234567890123456789012345678}}',
    '{"b": 1, "a": {}, "": [], "grüße": "\\u00fc\\n\\"😀"}',
    "null",
    '"text"',
    "[]",
    "-0.125",
    "1.000",
    "1e30",
    "123456789012345678901234567890123456789",
    '{"deep": [[[[{"n": 0.00000000000000000000000000000000000001}]]]]}',
    '{"long": "' + "x" * 9000 + '"}',
)
ONLY_JSON = ('{"a": 1, "a": 2}', '{ "b":1,   "a":"\\u0000" }', '"\\ud800"', '  {"z": 1, "a": [ 1 ]}')


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, doc jsonb, text json, note text)")
    return Mirror.create(database, warehouse, ThreadTaskRunner())


def register(mirror: Mirror, feed: FeedOptions | None = None) -> None:
    mirror.register("t", choices=parse_choices(["doc=variant", "text=variant"], []), format_version=3, feed=feed)


def data_files(warehouse: str) -> Iterator[Path]:
    root = local_path(warehouse)
    assert root is not None
    yield from root.rglob("data/*.parquet")


def assert_annotated(warehouse: str) -> None:
    """Every data file, but those of feeds, says that the columns are variants."""
    files = 0
    for path in data_files(warehouse):
        schema = str(pq.ParquetFile(path).schema)
        if "doc" in schema and "_lsn" not in schema:
            assert "doc (Variant(1))" in schema, schema
            files += 1
    assert files


def random_document(chance: random.Random, depth: int = 0) -> str:
    """JSON that jsonb takes, now and then with what a variant cannot hold."""
    kind = chance.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return chance.choice(("null", "true", "false"))
    if kind in (1, 2):
        digits = chance.choice((1, 3, 9, 18, 19, 38, 39, 60))
        number = str(chance.randrange(10**digits))
        places = chance.randrange(len(number) + 1)
        sign = chance.choice(("", "-"))
        whole = number[places:].lstrip("0") or "0"
        return f"{sign}{whole}.{number[:places]}" if places else f"{sign}{number}"
    if kind in (3, 4):
        length = chance.choice((0, 1, 5, 63, 64, 300, 4000))
        return json.dumps(
            "".join(chance.choice('aé"\\\n😀~') for _ in range(length)), ensure_ascii=chance.random() < 0.5
        )
    items = [random_document(chance, depth + 1) for _ in range(chance.choice((0, 1, 3, 300 if depth == 0 else 2)))]
    if kind == 5:
        return f"[{', '.join(items)}]"
    return "{" + ", ".join(f"{json.dumps('k' + str(chance.randrange(400)))}: {item}" for item in items) + "}"


def by_duckdb(mirror: Mirror) -> ComparisonEngine:
    return ComparisonEngine(mirror.runner, partial(compare_duckdb.compare, duckdb_connection()))


def lake_types(mirror: Mirror) -> dict[str, str]:
    fields = LakeTable.load(mirror.location("public.t"), StorageOptions()).schema.fields
    return {field.name: str(field.type) for field in fields}


@pytest.mark.further
def test_documents_by_copy_and_stream(mirror: Mirror, database: Database, warehouse: str, spark: SparkSession) -> None:
    def insert(first: int) -> None:
        for number, text in enumerate([*DOCUMENTS, None], first):
            value = "NULL" if text is None else f"$a${text}$a$"
            database.execute(f"INSERT INTO t VALUES ({number}, {value}, {value})")
        for number, text in enumerate(ONLY_JSON, first + len(DOCUMENTS) + 1):
            database.execute(f"INSERT INTO t VALUES ({number}, NULL, $a${text}$a$)")

    insert(0)
    register(mirror)
    with mirror.pumping():
        mirror.await_live("public.t")
        insert(100)
        mirror.await_frontier()
        # The long documents are in TOAST: the server does not send them again.
        database.execute("UPDATE t SET note = 'x' WHERE id % 2 = 0", "DELETE FROM t WHERE id IN (3, 104)")
        mirror.await_frontier()
    assert_annotated(warehouse)
    frame = spark.read.format("iceberg").load(mirror.location("public.t"))
    for column in ("doc", "text"):
        typed, raw = {}, {}
        for row in frame.collect():
            if row[column] is not None:
                typed[row["id"]] = document_text(bytes(row[column].metadata), bytes(row[column].value))
            else:
                raw[row["id"]] = row[f"{column}__raw"]
        with database.connect() as connection:
            printed = f"SELECT id, {column}::text::jsonb::text FROM t WHERE id = ANY (%s)"
            assert typed == dict(connection.execute(printed.encode(), (list(typed),)).fetchall())
            printed = f"SELECT id, {column}::text FROM t WHERE id = ANY (%s)"
            assert raw == dict(connection.execute(printed.encode(), (list(raw),)).fetchall())
        assert typed.keys() | raw.keys() == {key for (key,) in database.rows("SELECT id FROM t")}
        # 39 digits and, of json, what jsonb does not take as it is.
        assert len([text for text in raw.values() if text is not None]) == (2 if column == "doc" else 8)
    number = "variant_get(doc, '$.b.c', 'decimal(38,0)') = 12345678901234567890123456789012345678"
    assert frame.where(number).count() == 2
    with read(spark, "t", settings=mirror.settings) as pinned:
        assert pinned.where(number).count() == 2
    with pytest.raises(TableError, match="variant"):
        read(spark, "t", mode="heap", settings=mirror.settings)
    report = spark_report(mirror.settings, spark)
    assert report["tables"][0]["equal"], report
    # Spark compacts the files, and the pump goes on with those.
    maintained = Maintained(mirror, spark)
    assert maintained.maintain("public.t").errors == []
    assert_annotated(warehouse)
    with mirror.pumping():
        (compared,) = repairs(mirror, "t")
    assert (compared.different_rows, compared.lake_rows) == (0, frame.count()), "the bytes are the same"
    database.execute("UPDATE t SET note = 'y' WHERE id % 5 = 0", "DELETE FROM t WHERE id = 105")
    mirror.catch_up()
    assert assert_verified(database) == 1


@pytest.mark.further
def test_rows_take_every_way(mirror: Mirror, database: Database, warehouse: str, tmp_path: Path) -> None:
    """Merges of files, rows brought in bulk, changes that are undone in the lake, repairs, other types of the heap."""
    chance = random.Random(printed_seed())
    database.execute("ALTER TABLE t ALTER doc SET STORAGE EXTERNAL")
    register(mirror, FeedOptions(FeedMode.KEYS))
    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_live("public.t")
        for turn in range(20):
            with database.connect() as connection:
                for _ in range(4):
                    text = random_document(chance)
                    connection.execute(
                        "INSERT INTO t VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET doc = excluded.doc",
                        (chance.randrange(60), text, text),
                    )
                # Large documents are not sent again.
                connection.execute("UPDATE t SET note = %s WHERE id %% 3 = 0", (str(turn),))
                connection.execute("DELETE FROM t WHERE id = %s", (chance.randrange(60),))
            mirror.await_frontier()
        await_true(lambda: steps.count(Step.MERGED), 60, "a merge")
        newest = "SELECT id, arg_max(doc, (_lsn, _seq)) FROM lake WHERE _op <> 'reset' GROUP BY id"
        newest += " HAVING arg_max(_op, (_lsn, _seq)) <> 'delete'"
        rows = read_duckdb(mirror.location("public.t__changes"), newest).to_pylist()
        expected = dict(database.rows("SELECT id, doc::text FROM t"))
        assert dict(tuple(row.values()) for row in rows) == expected
        path = tmp_path / "rows.csv"
        path.write_text(
            'id,doc,text\n900,"{""b"" : 1e2,""a"":1, ""a"":2}","{""b"" : 1e2,""a"":1, ""a"":2}"\n901,null,\n'
        )
        assert ingest(mirror.settings, IngestRequest("t", (str(path),))).rows == 2
        mirror.await_frontier()
        assert_verified(database)
        drift(mirror.settings, "t", removed=[("900",)], added=[("900", '{"a": 2, "b": 101}', None, None)])
        (report,) = verify(mirror.settings, engine=by_duckdb(mirror)).tables
        assert report.comparison is not None
        assert report.comparison.different_rows == 1
        (difference,) = report.comparison.differences
        assert difference["columns"]["doc"] == {"heap": '{"a": 2, "b": 100}', "lake": '{"a": 2, "b": 101}'}
        resynced(mirror, "t", wait=True, where_different=True)
        assert_verified(database)
        drift(mirror.settings, "t", removed=[("901",)], added=[("901", None, None, None)])
        (repaired,) = repairs(mirror, "t")
        assert (repaired.different, repaired.repaired) == (1, True), "JSON's null is not NULL"
        assert_verified(database)
        database.execute("ALTER TABLE t ADD more jsonb", "UPDATE t SET more = '{\"a\": 1}' WHERE id = 900")
        database.execute("ALTER TABLE t ALTER text TYPE jsonb USING replace(text::text, '\\u0000', '')::jsonb")
        mirror.await_frontier()
    assert lake_types(mirror)["more"] == "string"
    assert_annotated(warehouse)


def test_reads_by_sql_and_feeds(mirror: Mirror, database: Database, warehouse: str, tmp_path: Path) -> None:
    """`sql` prints documents as PostgreSQL does, NULL apart from JSON's null; feeds have them as texts."""
    database.execute("CREATE TABLE w (doc jsonb, n int)", "ALTER TABLE w REPLICA IDENTITY FULL")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    big = DOCUMENTS[8]
    register(mirror, FeedOptions(FeedMode.ROWS))
    mirror.register("w", choices=parse_choices(["doc=variant"], []), format_version=3)
    mirror.catch_up()
    database.execute(
        """INSERT INTO t VALUES (1, '{"b": 1.50, "a": null}', '[1,  2]'), (2, 'null', NULL), (3, NULL, NULL)""",
        f"INSERT INTO t VALUES (4, '{big}')",
        """INSERT INTO w VALUES ('{"a": 1}', 1), ('{"a": 1}', 1), ('{"a": 1.0}', 1), (NULL, 1), ('null', 1)""",
    )
    mirror.catch_up()
    past = PastPoint(Lsn(mirror.frontier()), None)
    database.execute(
        "UPDATE t SET note = 'x' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "DELETE FROM w WHERE ctid = (SELECT min(ctid) FROM w)",
        "UPDATE w SET n = 2 WHERE doc IS NULL",
    )
    mirror.catch_up()
    assert queried(mirror, "SELECT id, doc, text, doc__raw, note FROM t ORDER BY id", tmp_path) == [
        {"id": 1, "doc": '{"a": null, "b": 1.50}', "text": "[1, 2]", "doc__raw": None, "note": "x"},
        {"id": 3, "doc": None, "text": None, "doc__raw": None, "note": None},
        {"id": 4, "doc": None, "text": None, "doc__raw": big, "note": None},
    ]
    rows = queried(mirror, "SELECT a.doc, b.n FROM w a JOIN w b ON a.doc = b.doc ORDER BY 1, 2", tmp_path)
    assert rows == [{"doc": text, "n": 1} for text in ("null", '{"a": 1.0}', '{"a": 1}')]
    assert queried(mirror, "SELECT count(*) AS n FROM t", tmp_path) == [{"n": 3}]
    rows = queried(mirror, "SELECT id, doc, note FROM t WHERE id < 3 ORDER BY id", tmp_path, at=past)
    assert [tuple(row.values()) for row in rows] == [(1, '{"a": null, "b": 1.50}', None), (2, "null", None)]
    with pytest.raises(TableError, match="variant"):
        queried(mirror, "SELECT doc FROM t", tmp_path, mode=ReadMode.HEAP)
    keep(mirror.settings, MomentOptions("kept"))
    checks = {part.table: part for part in check(mirror.settings, "kept", None)}
    assert checks["public.w"].heap is CheckResult.EQUAL, checks["public.w"].notes
    assert "white space of json (text)" in checks["public.t"].notes[0]
    database.execute("DELETE FROM t")
    mirror.catch_up()
    kept = "SELECT id, doc FROM t WHERE id < 4 ORDER BY id"
    rows = queried(mirror, kept, tmp_path, at=PastPoint(None, None, "kept"))
    assert rows == [{"id": 1, "doc": '{"a": null, "b": 1.50}'}, {"id": 3, "doc": None}]
    location = mirror.location("public.t__changes")
    changes = read_duckdb(location, "SELECT _op, id, doc, _old.doc AS old FROM lake ORDER BY _lsn, _seq").to_pylist()
    assert [tuple(change.values()) for change in changes[1:]] == [
        ("insert", 1, '{"a": null, "b": 1.50}', None),
        ("insert", 2, "null", None),
        ("insert", 3, None, None),
        ("insert", 4, big, None),
        ("update", 1, '{"a": null, "b": 1.50}', '{"a": null, "b": 1.50}'),
        ("delete", 2, None, "null"),
        ("delete", 3, None, None),
        ("delete", 4, None, big),
        ("delete", 1, None, '{"a": null, "b": 1.50}'),
    ]


def queried(
    mirror: Mirror, statement: str, directory: Path, mode: ReadMode = ReadMode.SEAM, at: PastPoint | None = None
) -> list[dict[str, object]]:
    """What `mirror-pump sql` prints as JSON."""
    output = directory / "result.json"
    run_query(complete(mirror.settings), Query(statement, mode, at), "json", output, lambda _: None)
    rows: list[dict[str, object]] = json.loads(output.read_text())
    return rows


_REFUSALS: list[tuple[list[str], dict[str, Any], str]] = [
    (["doc=variant"], {"format_version": 2}, "format version 2.*--format-version 3"),
    (["note=variant"], {}, "column note is text; not every value"),
    (["id=variant"], {}, "column id is integer; not every value"),
    (["code=variant"], {}, "key column code of public.keyed cannot be a variant"),
    (["doc=variant"], {"partition_by": "doc"}, "no partition of public.t, since column doc is variant"),
    (["doc=variant"], {"partition_by": "bucket(16, doc)"}, "no partition"),
    (["doc=variant"], {"sort_by": "doc"}, "cannot be sorted by doc, which is variant"),
    (["doc=variant"], {"retention": RetentionOptions(lag="10")}, "rows leave the heap"),
]


def test_refusals(mirror: Mirror) -> None:
    mirror.database.execute("CREATE TABLE keyed (code jsonb PRIMARY KEY)")
    for columns, options, message in _REFUSALS:
        layout = {name: options.pop(name) for name in ("partition_by", "sort_by") if name in options}
        table = "keyed" if "code=variant" in columns else "t"
        choices = parse_choices(columns, [], **layout)
        with pytest.raises(TableError) as refused:
            mirror.register(table, choices=choices, **{"format_version": 3, **options})
        assert re.search(message, f"{refused.value} {refused.value.remedy}")
        wish = TableOptions(
            choices, options.get("retention"), feed=options.get("feed"), format_version=options.get("format_version", 3)
        )
        (shown,) = preview(mirror.settings, [table], wish)
        assert re.search(message, f"{shown.error} {shown.error and shown.error.remedy}")


def test_a_list_has_no_variants() -> None:
    with pytest.raises(UsageError, match="not a lake type"):
        parse_choices(["docs=list<variant>"], [])


def test_registration_says_what_readers_lose(mirror: Mirror, database: Database, run: RunCommand) -> None:
    """Of a domain over jsonb too. What is exported declares the same table."""
    database.execute("CREATE DOMAIN object AS jsonb CHECK (jsonb_typeof(VALUE) = 'object')")
    database.execute("CREATE TABLE d (id int PRIMARY KEY, doc object)", """INSERT INTO d VALUES (1, '{"a": 1}')""")
    options = ["--slot", mirror.settings.slot, "d", "--column", "doc=variant", "--format-version", "3"]
    shown = run("register", *options, "--dry-run")
    assert "doc variant (public.object)" in shown.output
    assert "column doc is a variant: pyiceberg" in shown.output
    registered = run("register", *options, "--no-wait")
    assert registered.exit_code == 0, registered.output
    assert "cannot read the table at all" in registered.output
    assert "--column doc=string" in registered.output
    mirror.catch_up()
    assert run("register", *options, "--no-wait").exit_code == 0
    (entry,) = export(mirror.settings)
    assert entry == {"tables": ["public.d"], "column": ["doc=variant"], "format_version": 3}
    assert "refuses variant columns" in run("connect", "--slot", mirror.settings.slot, "--engine", "pyiceberg").output
    database.execute("ALTER TABLE d ALTER doc TYPE text")
    mirror.catch_up()
    with database.connect() as connection:
        (document,) = connection.execute("SELECT metadata_location FROM modak.iceberg_tables").fetchall()
    fields = LakeTable.load(document[0], StorageOptions()).schema.fields
    assert [str(field.type) for field in fields] == ["int", "string"]
