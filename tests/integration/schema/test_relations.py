"""What the catalogs of a real server say about relations, and which relations are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import TableName
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.relations.relations import RelationDescription, describe, refuse, resolve_name
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from tests.support.users_tables import connect_as_user


@pytest.fixture
def conn(database: Database) -> Iterator[PgConnection]:
    with connect_as_user(database.dsn) as connection:
        yield connection


def described(conn: PgConnection, name: str, publication: str | None = None) -> RelationDescription:
    return describe(conn, resolve_name(conn, name)[1], publication)


def own_path(conn: PgConnection, path: str) -> None:
    """Sets the path of everybody's sessions in the database."""
    conn.execute(f'ALTER DATABASE "{conn.info.dbname}" SET search_path = {path}'.encode())


def test_names_without_a_schema_follow_the_roles_own_path(database: Database, conn: PgConnection) -> None:
    """That of the connection string, or else of the role in the database, the role, the database or the server."""
    name = f"role {os.urandom(4).hex()}"
    role = sql.Identifier(name)
    dsn = make_conninfo(database.dsn, user=name, password="secret")

    def run(text: str) -> None:
        conn.execute(sql.SQL(text).format(role=role, database=sql.Identifier(database.name)))

    def found(own: str, text: str = "t") -> str | None:
        with connect(own, autocommit=True) as connection:
            try:
                return resolve_name(connection, text)[0].schema
            except UsageError:
                return None
            finally:
                assert connection.execute("SHOW search_path").fetchone() == ("pg_catalog,pg_temp",)

    run("CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        for schema in ("{role}", "a", "b", "c", "hidden", "public"):
            if schema != "public":
                run(f"CREATE SCHEMA {schema}")
            run(f"CREATE TABLE {schema}.t (id int); CREATE TABLE {schema}.pg_class (id int)")
        run("GRANT USAGE ON SCHEMA {role}, a, b, c TO {role}")
        assert (found(database.dsn), found(dsn)) == ("public", name)
        cases: tuple[tuple[str, str, str | None], ...] = (
            ("DATABASE {database} SET search_path = hidden, missing, a", "t", "a"),
            ("ROLE {role} SET search_path = b", "t", "b"),
            ("ROLE {role} IN DATABASE {database} SET search_path = c, pg_catalog", "t", "c"),
            ("ROLE {role} IN DATABASE {database} SET search_path = c, pg_catalog", "pg_class", "c"),
            ("ROLE {role} IN DATABASE {database} SET search_path = c", "pg_class", "pg_catalog"),
            ("ROLE {role} IN DATABASE {database} SET search_path = ''", "t", None),
            ("ROLE {role} IN DATABASE {database} SET search_path = ''", "a.t", "a"),
        )
        for path, text, expected in cases:
            run(f"ALTER {path}")
            assert found(dsn, text) == expected, path
        for options in ("-c search_path=b,a", "-csearch_path=b", "--search-path=b", r"-c search_path=\"$user\",\ b"):
            own = make_conninfo(dsn, options=f"-c work_mem=1MB {options}")
            assert found(own) == (name if "user" in options else "b"), options
    finally:
        run("DROP OWNED BY {role}; DROP ROLE {role}")


def test_names_are_read_as_postgres_reads_them(conn: PgConnection) -> None:
    conn.execute('CREATE SCHEMA app; CREATE TABLE app.Plain (id int primary key); CREATE TABLE "Odd.""N" (id int)')
    own_path(conn, "app, public")
    assert resolve_name(conn, "PLAIN")[0] == TableName("app", "plain")
    assert resolve_name(conn, 'public."Odd.""N"')[0] == TableName("public", 'Odd."N')
    with pytest.raises(UsageError, match="no table public") as failure:
        resolve_name(conn, "public.plain")
    assert "app.plain" in failure.value.remedy
    for nonsense in ("", "a.b.c.d", 'x"y'):
        with pytest.raises(UsageError):
            resolve_name(conn, nonsense)


def test_only_tables_that_may_be_read_are_proposed(conn: PgConnection) -> None:
    role = f"stranger_{os.urandom(4).hex()}"
    conn.execute(f"CREATE SCHEMA app; CREATE TABLE app.plain (id int); CREATE ROLE {role}".encode())
    try:
        for grant, proposed in (("", False), ("USAGE ON SCHEMA app", False), ("SELECT ON app.plain", True)):
            if grant:
                conn.execute(f"GRANT {grant} TO {role}".encode())
            conn.execute(f"SET ROLE {role}".encode())
            with pytest.raises(UsageError) as failure:
                resolve_name(conn, "plain")
            conn.execute("RESET ROLE")
            assert ("app.plain" in failure.value.remedy) is proposed, grant
    finally:
        conn.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_columns_are_described_as_published(conn: PgConnection) -> None:
    conn.execute(
        """
        CREATE DOMAIN money_ AS numeric(12,3); CREATE DOMAIN cash AS money_; CREATE DOMAIN tags AS varchar(5)[];
        CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b text);
        CREATE TABLE t (dropped int, b bigint, amount numeric(14,2), a int, free numeric, wide numeric(50,2), c cash,
          cs cash[], ns numeric(10,4)[], tg tags, m mood, ms mood[], p pair, bx box[], iv int2vector, n name, o oid,
          twice int GENERATED ALWAYS AS (a * 2) STORED, u uuid, ts timestamptz(3), txt text NOT NULL,
          PRIMARY KEY (a, b));
        ALTER TABLE t DROP COLUMN dropped
        """
    )
    conn.execute("CREATE PUBLICATION without")
    description = described(conn, "t", "without")
    assert description.generated == ("twice",)
    assert description.key == ("b", "a")
    assert [column.field_id for column in description.columns] == list(range(1, len(description.columns) + 1))
    assert {column.name: str(column.type) for column in description.columns} == {
        "b": "long",
        "amount": "decimal(14,2)",
        "a": "int",
        "free": "string",
        "wide": "string",
        "c": "decimal(12,3)",
        "cs": "list<decimal(12,3)>",
        "ns": "list<decimal(10,4)>",
        "tg": "list<string>",
        "m": "string",
        "ms": "list<string>",
        "p": "string",
        "bx": "string",
        "iv": "string",
        "n": "string",
        "o": "long",
        "u": "uuid",
        "ts": "timestamptz",
        "txt": "string",
    }
    first = description.columns[0]
    assert (first.attnum, first.type_sql, first.not_null) == (2, "bigint", True)
    refuse(description)


@pytest.mark.skipif(major_version() < 18, reason="the server publishes no generated columns")
def test_stored_generated_columns_are_described_as_the_publication_has_them(conn: PgConnection) -> None:
    conn.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id + 1) STORED, v int GENERATED ALWAYS AS (id));
        CREATE PUBLICATION without; CREATE PUBLICATION has WITH (publish_generated_columns = stored)
        """
    )
    for publication, names, left_out in (
        ("without", ["id"], ("s", "v")),
        ("nobody's", ["id"], ("s", "v")),
        ("has", ["id", "s"], ("v",)),
        (None, ["id", "s"], ("v",)),
    ):
        description = described(conn, "t", publication)
        assert ([column.name for column in description.columns], description.generated) == (names, left_out)


@pytest.mark.parametrize(
    ("create", "complaint"),
    [
        ("CREATE TABLE t (id int)", "no primary key"),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", "REPLICA IDENTITY NOTHING"),
        ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", "DEFERRABLE"),
        ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE); ALTER TABLE t REPLICA IDENTITY FULL", "DEFERRABLE"),
        (("CREATE TABLE t (id int NOT NULL); CREATE UNIQUE INDEX i ON t (id);"
         " ALTER TABLE t REPLICA IDENTITY USING INDEX i; DROP INDEX i"), "does not exist any more"),
        ("CREATE TABLE t (id float8 PRIMARY KEY)", "floating-point"),
        ("CREATE DOMAIN f AS real; CREATE TABLE t (a int, id f, PRIMARY KEY (a, id))", "floating-point"),
        ("CREATE TABLE t (id int[] PRIMARY KEY)", "single values"),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "unlogged"),
        ("CREATE TEMPORARY TABLE t (id int PRIMARY KEY)", "temporary"),
        ("CREATE VIEW t AS SELECT 1 AS id", "a view"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "a materialized view"),
        ("CREATE SEQUENCE t", "a sequence"),
        (("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
         " CREATE FOREIGN TABLE t (id int) SERVER s"), "a foreign table"),
        ("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (PRIMARY KEY (id)) INHERITS (p)", "INHERITS"),
        ("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE c (PRIMARY KEY (id)) INHERITS (t)", "INHERITS"),
        (("CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);"
         " CREATE TABLE t PARTITION OF r FOR VALUES FROM (0) TO (9)"), "register public.r instead"),
        (("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
         " CREATE TABLE l PARTITION OF t FOR VALUES FROM (0) TO (9); ALTER TABLE l REPLICA IDENTITY NOTHING"),
         "another replica identity"),
        (("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
         " CREATE TABLE l PARTITION OF t FOR VALUES FROM (0) TO (9); ALTER TABLE t REPLICA IDENTITY FULL"),
         "another replica identity"),
        (("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
         " CREATE UNLOGGED TABLE l PARTITION OF t FOR VALUES FROM (0) TO (9)"), "unlogged"),
    ],
)  # fmt: skip
def test_refused_with_a_remedy(conn: PgConnection, create: str, complaint: str) -> None:
    conn.execute(create.encode())
    with pytest.raises(TableError) as failure:
        refuse(described(conn, "t"))
    assert complaint in f"{failure.value} {failure.value.remedy}"
    assert failure.value.remedy


@pytest.mark.parametrize(
    "create",
    [
        (
            "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED);"
            " ALTER TABLE t REPLICA IDENTITY FULL"
        ),
        (
            "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED) PARTITION BY RANGE (id);"
            " CREATE TABLE l PARTITION OF t FOR VALUES FROM (0) TO (9); ALTER TABLE l REPLICA IDENTITY FULL"
        ),
    ],
)
def test_a_whole_old_row_without_its_generated_columns_is_refused_where_the_server_refuses_it(
    conn: PgConnection, create: str
) -> None:
    conn.execute(create.encode())
    conn.execute("CREATE PUBLICATION without")
    refuse(described(conn, "t"))
    if conn.info.server_version < 180000:
        return
    with pytest.raises(TableError, match="generated columns") as failure:
        refuse(described(conn, "t", "without"))
    assert "REPLICA IDENTITY DEFAULT" in failure.value.remedy


def test_a_key_that_the_stream_does_not_carry_is_refused(conn: PgConnection) -> None:
    conn.execute(
        "CREATE TABLE t (a int, id int GENERATED ALWAYS AS (a) STORED PRIMARY KEY); CREATE PUBLICATION without"
    )
    with pytest.raises(TableError, match="generated") as failure:
        refuse(described(conn, "t", "without"))
    assert failure.value.remedy
    if conn.info.server_version >= 180000:
        refuse(described(conn, "t"))


@pytest.mark.empty_database
def test_system_and_own_tables_are_refused(conn: PgConnection) -> None:
    conn.execute("CREATE SCHEMA modak; CREATE TABLE modak.mine (id int PRIMARY KEY)")
    for name in ("pg_catalog.pg_class", "modak.mine"):
        with pytest.raises(TableError):
            refuse(described(conn, name))
    with pytest.raises(TableError, match="no relation"):
        describe(conn, 4_000_000_000)


@pytest.mark.parametrize(
    ("create", "key"),
    [
        ("CREATE TABLE t (v text, b int, a int, PRIMARY KEY (a, b) INCLUDE (v))", ("b", "a")),
        ("CREATE TABLE t (id int PRIMARY KEY, v int); ALTER TABLE t REPLICA IDENTITY FULL", ("id",)),
        ("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL", ()),
        (("CREATE TABLE t (id int PRIMARY KEY, v int, u int NOT NULL); CREATE UNIQUE INDEX i ON t (u) INCLUDE (v);"
         " ALTER TABLE t REPLICA IDENTITY USING INDEX i"), ("u",)),
        (("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, u int NOT NULL UNIQUE);"
         " ALTER TABLE t REPLICA IDENTITY USING INDEX t_u_key"), ("u",)),
    ],
)  # fmt: skip
def test_the_key_is_what_the_server_logs(conn: PgConnection, create: str, key: tuple[str, ...]) -> None:
    conn.execute(create.encode())
    description = described(conn, "t")
    refuse(description)
    assert description.key == key


def test_partitioned_tables_have_their_leaves(conn: PgConnection) -> None:
    conn.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);
        CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (100) PARTITION BY RANGE (id);
        CREATE TABLE high_a PARTITION OF high FOR VALUES FROM (10) TO (20);
        CREATE TABLE attached (v text, id int PRIMARY KEY);
        ALTER TABLE high ATTACH PARTITION attached FOR VALUES FROM (20) TO (30);
        ALTER TABLE low REPLICA IDENTITY FULL;
        INSERT INTO t SELECT i, 'x' FROM generate_series(0, 29) i; ANALYZE t
        """
    )
    description = described(conn, "t")
    refuse(description)
    assert {leaf.name.name for leaf in description.leaves} == {"low", "high_a", "attached"}
    assert description.estimated_rows == 30
    assert description.bytes == 3 * description.block_bytes
    assert all(leaf.filenode for leaf in description.leaves)


@pytest.mark.empty_database
def test_a_role_without_rights_is_refused(conn: PgConnection, database: Database) -> None:
    role = f"reader_{database.name}"[:60]
    conn.execute(f"CREATE ROLE {role}".encode())
    try:
        conn.execute(
            "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE s (id int PRIMARY KEY);"
            " ALTER TABLE s ENABLE ROW LEVEL SECURITY; ALTER TABLE s FORCE ROW LEVEL SECURITY"
        )
        conn.execute(f"ALTER TABLE s OWNER TO {role}; SET ROLE {role}".encode())
        with pytest.raises(TableError, match="does not own"):
            refuse(described(conn, "t"))
        with pytest.raises(TableError, match="row security"):
            refuse(described(conn, "s"))
    finally:
        conn.execute(f"RESET ROLE; DROP TABLE s; DROP ROLE {role}".encode())
