"""Files that Spark rewrote hold the same values, and the pump can read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.maintenance import MIB, Maintained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES = """
CREATE TABLE every_type (
    id bigint PRIMARY KEY, b boolean, i2 smallint, i4 int, f4 real, f8 double precision, small numeric(9,2),
    large numeric(38,10), free numeric, t text, c char(5), bin bytea, u uuid, d date, tm time, ts timestamp,
    tz timestamptz, j jsonb, ints int[], texts text[], uuids uuid[], stamps timestamptz[])
"""
_VALUES = """
INSERT INTO every_type
SELECT g, g % 2 = 0, g, g * 1000, g / 7.0, g / 3.0::float8, g / 100.0, g * 12345678901234567.0000000001, g * 1.25,
       'text ' || g, 'c', decode(md5(g::text), 'hex'), md5(g::text)::uuid, date '1700-01-01' + g * 100,
       time '00:00' + g * interval '1 s', timestamp '0001-01-01' + g * interval '40 days',
       timestamptz '1969-12-31 23:59:59.999999+00' + g * interval '1 us', jsonb_build_object('g', g),
       ARRAY[g, NULL, -g], ARRAY['a,b', NULL, g::text], ARRAY[md5(g::text)::uuid], ARRAY[now() - g * interval '1 day']
  FROM generate_series(1, 60) g
"""
_EDGES = (
    "UPDATE every_type SET f4 = 'NaN', f8 = '-Infinity' WHERE id = 1",
    "UPDATE every_type SET f4 = '-0', f8 = '-0' WHERE id = 2",
    "DELETE FROM every_type WHERE id = 3",
    "INSERT INTO every_type (id) VALUES (3)",
    "UPDATE every_type SET t = '', bin = '', ints = '{}', large = -99999999999999999999999999.9999999999 WHERE id = 4",
    "UPDATE every_type SET d = '9999-12-31', ts = '9999-12-31 23:59:59.999999' WHERE id = 5",
    # These need raw text columns.
    "UPDATE every_type SET d = 'infinity', small = 'NaN', ints = '{{1},{2}}', tz = '-infinity' WHERE id = 6",
    "UPDATE every_type SET d = '-infinity' WHERE id = 7",
)


@pytest.mark.parametrize("strategy", ["binpack", pytest.param("sort", marks=pytest.mark.soak)])
def test_every_type_survives(database: Database, warehouse: str, spark: SparkSession, strategy: str) -> None:
    database.execute(_TYPES, _VALUES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("every_type")
    mirror.catch_up()
    for statement in _EDGES:
        database.execute(statement)
        mirror.catch_up()
    maintained = Maintained(mirror, spark)
    table = "public.every_type"
    before = maintained.read(table), mirror.lake(table)
    assert "{{1},{2}}" in repr(before[0])
    maintained.policy(table, rewrite_target_bytes=MIB, rewrite_strategy=strategy)
    # Like a table that was registered before there were such properties.
    properties = maintained.lake_table(table).schema.engine_properties
    assert len(properties) == 2
    names = ", ".join(f"'{name}'" for name in properties)
    maintained.session.sql(f"ALTER TABLE lake.{table} UNSET TBLPROPERTIES ({names})").collect()
    result = maintained.maintain(table)
    assert result.errors == []
    assert result.after is not None
    assert result.after.data_files == 1
    assert repr((maintained.read(table), mirror.lake(table))) == repr(before), "NaN and -0 included"
    for order in ("ASC", "DESC"):
        ((value, key),) = database.rows(
            f"SELECT u::text, id FROM every_type WHERE u IS NOT NULL ORDER BY u {order} LIMIT 1"
        )
        found = maintained.session.sql(f"SELECT id FROM lake.{table} WHERE u = '{value}'").collect()
        assert [row[0] for row in found] == [key], "a uuid of either half"
    assert maintained.lake_table(table).metadata.properties.items() >= properties.items()
    database.execute("UPDATE every_type SET t = t || '!' WHERE id % 3 = 0", "DELETE FROM every_type WHERE id % 7 = 0")
    mirror.catch_up()
    place = 9
    assert [(row[0], row[place]) for row in mirror.lake(table)] == sorted(
        database.rows("SELECT id, t FROM every_type"), key=lambda row: repr(row[:1])
    )


@pytest.mark.further
@pytest.mark.parametrize("strategy", ["binpack", pytest.param("sort", marks=pytest.mark.soak)])
def test_unchanged_large_values_are_found_in_files_that_spark_wrote(
    database: Database, warehouse: str, spark: SparkSession, strategy: str
) -> None:
    """Iceberg's Java code encodes column names in Parquet files in its own way."""
    database.execute(
        'CREATE SCHEMA "My Schema"',
        'CREATE TABLE "My Schema"."Odd `name`" ("the key" int, "2nd" text, "large ümlaut-value" text, n int,'
        ' PRIMARY KEY ("the key", "2nd"))',
        'ALTER TABLE "My Schema"."Odd `name`" ALTER "large ümlaut-value" SET STORAGE EXTERNAL',
        'INSERT INTO "My Schema"."Odd `name`" SELECT g, \'k\', repeat(md5(g::text), 200), 0'
        " FROM generate_series(1, 50) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    name = '"My Schema"."Odd `name`"'
    mirror.register(name)
    mirror.catch_up()
    database.execute('UPDATE "My Schema"."Odd `name`" SET n = 1 WHERE "the key" % 2 = 0')
    mirror.catch_up()
    maintained = Maintained(mirror, spark)
    maintained.policy(name, rewrite_strategy=strategy)
    assert maintained.maintain(name).errors == []
    database.execute('UPDATE "My Schema"."Odd `name`" SET n = 2 WHERE "the key" % 3 = 0')
    mirror.catch_up()
    assert mirror.database.rows("SELECT state, error FROM modak.mirror_tables") == [("live", None)]
    assert len(maintained.read("`My Schema`.`Odd ``name```")) == 50
    found = sorted(row for row in maintained.read("`My Schema`.`Odd ``name```"))
    assert found == sorted(mirror.heap(name))
