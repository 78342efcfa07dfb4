"""What a database's own catalogs hold, to compare before and after."""

from __future__ import annotations

from typing import Any

from psycopg import sql

from mirror_pump.testing.database import Database

_PASSING = {
    # Statistics, and what VACUUM, ANALYZE and the server's own counters set.
    "pg_class": {"relpages", "reltuples", "relallvisible", "relallfrozen", "relfrozenxid", "relminmxid", "relfilenode"},
    "pg_database": {"datfrozenxid", "datminmxid"},
}
_LEFT_OUT = ("pg_statistic", "pg_statistic_ext_data", "pg_largeobject", "pg_largeobject_metadata")


def catalogs(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of all tables in pg_catalog, by table, with those about the server's roles and slots. VACUUMs before:
    it takes back marks such as pg_class.relhastriggers, which stay true when the last trigger goes."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    with database.connect() as connection:
        connection.execute("VACUUM")
        tables = connection.execute(
            "SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)"
            "  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'r' AND a.attnum > 0"
            "   AND NOT a.attisdropped AND c.relname <> ALL (%s) GROUP BY 1 ORDER BY 1",
            (list(_LEFT_OUT),),
        ).fetchall()
        for table, columns in tables:
            kept = [column for column in columns if column not in _PASSING.get(table, set())]
            shown = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column)) for column in kept)
            query = sql.SQL("SELECT {} FROM pg_catalog.{}").format(shown, sql.Identifier(table))
            found[table] = sorted(connection.execute(query).fetchall(), key=repr)
        found["slots"] = connection.execute(
            "SELECT slot_name, database FROM pg_replication_slots ORDER BY 1"
        ).fetchall()
    return found
