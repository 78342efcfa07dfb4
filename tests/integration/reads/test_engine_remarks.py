"""`connect` says what an engine cannot do with a table, and the REST catalog refuses no table for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.errors import TableError
from mirror_pump.ops.reads.engine_snippets import cloud_snippet
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pending_deletes import await_index
from tests.support.rest_catalog import served


def comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith(("#", "--")))


@pytest.mark.further
def test_it_says_what_an_engine_refuses_and_reads_wrongly(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE newer (id int PRIMARY KEY, v text, tags text[])",
        "INSERT INTO newer SELECT g, 'row', NULL FROM generate_series(1, 100) g",
        "CREATE TABLE unregistered (id int PRIMARY KEY)",
        "CREATE TABLE older (id int PRIMARY KEY, v text)",
        "INSERT INTO older SELECT g, 'row' FROM generate_series(1, 100) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("newer", format_version=3)
    mirror.register("older", format_version=2)
    with mirror.pumping() as running:
        mirror.await_live("public.newer", "public.older")
        await_index(mirror, running.steps, "public.newer", "UPDATE newer SET v = 'first' WHERE id = 1")
        database.execute("UPDATE newer SET v = 'changed' WHERE id < 10", "DELETE FROM newer WHERE id > 90")
        mirror.await_frontier()
    program = Program(database.dsn, tmp_path, mirror.settings.environment())
    trino, spark = (program.run("connect", "--engine", engine, "--table", "newer") for engine in ("trino", "spark"))
    assert "refuses deletion vectors of public.newer: Unexpected PUFFIN file format." in comments(trino)
    assert "refuses" not in comments(spark)
    assert "WRONG" not in comments(spark)
    assert "`public`.`newer`" in spark
    assert "deletion vectors" not in comments(program.run("connect", "--engine", "trino", "--table", "public.older"))
    program.run("connect", "--engine", "trino", "--table", "absent", code=2)
    program.run("connect", "--engine", "trino", "--table", "unregistered", code=1)
    with served(mirror.settings) as catalog:
        rest = ("--rest", catalog.uri, "--table", "newer")
        clickhouse = comments(program.run("connect", "--engine", "clickhouse", *rest))
        assert "WRONG RESULTS: ClickHouse" in clickhouse
        assert "does not read lists of public.newer rightly" in clickhouse
        assert "refuses deletion vectors of public.newer" in clickhouse
        # A client that reads vectors gets the table, of whatever version it is.
        client = catalog.pyiceberg("mirror@latest")
        for name in ("newer", "older"):
            rows = client.load_table(("public", name)).scan().to_arrow()
            ids = [key for (key,) in database.rows(f"SELECT id FROM {name} ORDER BY 1")]
            assert sorted(rows["id"].to_pylist()) == ids


@pytest.mark.further
def test_it_prints_nothing_for_an_engine_of_a_cloud_that_does_not_read_the_table(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute(
        "CREATE TABLE newer (id int PRIMARY KEY, v text)",
        'CREATE TABLE "Old\ner" (id int PRIMARY KEY, "v\n;" text)',
        """INSERT INTO "Old\ner" VALUES (1, 'a'), (2, 'b')""",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("newer", format_version=3)
    mirror.register('"Old\ner"', format_version=2)
    mirror.catch_up()
    # The lake is where such an engine reaches it; the metadata file is still read from where it is.
    settings = mirror.settings.model_copy(update={"warehouse": "s3://lake/shop", "storage_endpoint": None})
    warnings: list[str] = []

    def printed(engine: str, table: str, uri: str | None = None) -> str:
        return cloud_snippet(settings, engine, uri, warn=warnings.append, table=table)

    with pytest.raises(TableError, match="format version 3, which Amazon Athena does not read"):
        printed("athena", "newer")
    (location,) = database.rows("SELECT metadata_location FROM modak.iceberg_tables WHERE table_name = 'newer'")[0]
    assert f"uris = ['{location}']" in printed("bigquery", "newer")
    older = printed("databricks", '"Old\ner"')
    assert "Databricks refuses position deletes" in comments(older)
    redshift = comments(printed("redshift", '"Old\ner"'))
    assert "v ; of public" in redshift, "a name that has a line break ends no comment"
    snowflake = printed("snowflake", "newer", "https://lake.example.com/iceberg/")
    assert "CATALOG_URI = 'https://lake.example.com/iceberg'\n    CATALOG_NAME = 'mirror'" in snowflake
    database.execute("""UPDATE "Old\ner" SET "v\n;" = 'c' WHERE id = 1""")
    mirror.catch_up()
    with pytest.raises(TableError, match=r"1 (equality|position) deletes"):
        printed("databricks", '"Old\ner"')
    assert warnings == []
    Path(location.removeprefix("file://")).unlink()
    assert "Snowflake refuses equality deletes" in printed("snowflake", "newer", "https://lake.example.com/iceberg")
    assert len(warnings) == 1
    assert "the deletes of public.newer were not looked at" in warnings[0]
