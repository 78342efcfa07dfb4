"""Tables that tests of repeated copies and of schema changes create, and how readers see them."""

from __future__ import annotations

from typing import Any

from mirror_pump.testing.mirror import Mirror

PARTITIONED = (
    "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
    "INSERT INTO p SELECT generate_series(0, 19)",
)

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, n int, big text)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT g, 'v' || g, g, repeat('x', 3000) || g FROM generate_series(1, 300) g",
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    "INSERT INTO other VALUES (1, 'one')",
)

DEFAULTS = {
    "boolean": "true",
    "smallint": "-7",
    "bigint": "9223372036854775807",
    "real": "0.1",
    "double precision": "'-0'",
    "numeric(12,3)": "-123456.789",
    "numeric": "1e-20",
    "text": r"E'it''s \"ü\" \\ {},NULL\n'",
    "char(5)": "'ab'",
    "varchar(9)": "'NULL'",
    "date": "'1582-10-15'",
    "time": "'23:59:59.999999'",
    "timestamp": "'0044-03-15 12:00:00.000001 BC'",
    "timestamptz": "'2026-01-01 00:00:00.123456+13'",
    "interval": "'1 year 2 mons -3 days 04:05:06.7'",
    "uuid": "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    "bytea": r"'\x005c22ff'",
    "jsonb": """'{"a": ["b", null, "\\u00fc"]}'""",
    "inet": "'10.0.0.1/8'",
    "mood": "'it''s, \"bad\"'",
    "int[]": "'{1,NULL,-3}'",
    "text[]": """'{a,"b c",NULL,"NULL","",{}}'""".replace(",{}", ""),
    "timestamptz[]": "'{2026-01-01 00:00+13}'",
    "positive": "5",
}


def published(mirror: Mirror, table: str) -> tuple[Any, ...]:
    """The frontier, the published snapshot and the state of a table, and whether the pointer is the published
    snapshot's."""
    return mirror.database.rows(
        "SELECT c.replicated_lsn, c.lake_snapshot_id, m.state, c.lake_props ->> 'metadata_location'"
        "  FROM modak.cutline c JOIN modak.mirror_tables m USING (table_id) JOIN modak.tables t USING (table_id)"
        " WHERE t.table_name = %s",
        (table,),
    )[0]
