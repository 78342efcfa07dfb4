"""A copy of schema modak's rows, which can be put back: what restoring a dump of that schema alone does."""

from __future__ import annotations

from psycopg import sql

from mirror_pump.testing.database import Database

_TABLES = """
SELECT relname FROM pg_class WHERE relnamespace = 'modak'::regnamespace AND relkind = 'r' ORDER BY relname
"""
_COLUMNS = """
SELECT attname FROM pg_attribute
 WHERE attrelid = ('modak.' || quote_ident(%s))::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""


class KeptCatalog:
    """The rows as they are now."""

    def __init__(self, database: Database, name: str) -> None:
        """`name`: a schema of the database for the copy."""
        self._database = database
        self._name = name
        self._tables = [str(table) for (table,) in database.rows(_TABLES)]
        with database.session(autocommit=False) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
            for table in self._tables:
                connection.execute(
                    sql.SQL("CREATE TABLE {} AS TABLE {}").format(
                        sql.Identifier(name, table), sql.Identifier("modak", table)
                    )
                )

    def put_back(self) -> None:
        """Nobody may lead the mirror meanwhile. No trigger fires."""
        with self._database.session(autocommit=False) as connection:
            connection.execute("SET LOCAL session_replication_role = replica")
            for table in self._tables:
                columns = sql.SQL(", ").join(
                    sql.Identifier(column) for (column,) in connection.execute(_COLUMNS, (table,)).fetchall()
                )
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier("modak", table)))
                connection.execute(
                    sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
                        sql.Identifier("modak", table), columns, columns, sql.Identifier(self._name, table)
                    )
                )

    def differences(self, *, except_for: set[str]) -> list[str]:
        """The tables whose rows are not those of the copy."""
        return [
            table
            for table in self._tables
            if table not in except_for
            and self._database.rows(
                f"SELECT FROM ((SELECT to_jsonb(x) FROM modak.{table} x EXCEPT ALL"
                f" SELECT to_jsonb(y) FROM {self._name}.{table} y) UNION ALL"
                f" (SELECT to_jsonb(y) FROM {self._name}.{table} y EXCEPT ALL"
                f" SELECT to_jsonb(x) FROM modak.{table} x)) d"
            )
        ]
