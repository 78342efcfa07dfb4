"""Functions and views of schema modak follow the program: they are applied again if and only if their text has
changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

import sql
from mirror_pump.errors import SourceError
from mirror_pump.source.catalog import catalog_functions, catalog_schema
from mirror_pump.source.catalog.catalog_schema import MigrationResult, latest_version, migrate, require_current
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.retention_sql import SqlTable

Files = Callable[..., None]


@pytest.fixture
def other_program(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Changes the result of sql.functions(): for each named file, the text is what the given function makes of it. A
    new file starts from an empty text, and an empty result removes the file."""
    present = sql.functions()

    def change(program: str = "0.0.1", **changes: Callable[[str], str]) -> None:
        files = {file.name: file.text for file in present}
        for name, edit in changes.items():
            files[name] = edit(files.get(name, ""))
        changed = tuple(sql.FunctionFile(name, text) for name, text in sorted(files.items()) if text)
        monkeypatch.setattr(sql, "functions", lambda: changed)
        for module in (catalog_functions, catalog_schema):
            monkeypatch.setattr(module, "program_version", lambda: program)

    return change


def _replaced(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return edit


def _added(text: str) -> Callable[[str], str]:
    return lambda former: former + text


def _migrate(database: Database) -> MigrationResult:
    with database.connect() as connection:
        return migrate(connection)


def test_everything_that_files_define_is_recorded_and_nothing_else_is_there(database: Database) -> None:
    _migrate(database)
    recorded = {name for (objects,) in database.rows("SELECT objects FROM modak.mirror_functions") for name in objects}
    existing = database.rows(
        "SELECT format('FUNCTION modak.%s', oid::regprocedure) FROM pg_proc WHERE pronamespace = 'modak'::regnamespace"
        " UNION ALL SELECT format('VIEW modak.%s', c.relname) FROM pg_class c"
        " WHERE c.relnamespace = 'modak'::regnamespace AND c.relkind = 'v'"
    )
    assert len(existing) > 60
    assert recorded == {name.replace("modak.modak.", "modak.") for (name,) in existing}


def test_partitions_go_on_with_new_functions_while_they_are_written_to(
    database: Database, other_program: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older put_delta() would lose every correction. The next init replaces it during writes, and the triggers
    stay."""
    other_program(
        corrections=_replaced(
            "VALUES (id, key, what, tier, nextval('modak.delta_version'), image)",
            "SELECT id, key, what, tier, nextval('modak.delta_version'), image WHERE false",
        )
    )
    table = SqlTable(database)
    table.pass_by("ev0", 100)
    database.execute("UPDATE ev SET v = 'lost' WHERE id = 1")
    assert table.delta() == {}
    triggers = database.rows(
        "SELECT oid, tgrelid, tgfoid, xmin::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY oid"
    )
    written, stop, errors = [0], threading.Event(), []

    def write() -> None:
        with database.connect() as connection:
            while not stop.is_set():
                try:
                    connection.execute("UPDATE ev SET v = %s WHERE id = 1", (str(written[0] + 1),))
                except psycopg.Error as error:
                    errors.append(error)
                    return
                written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        await_true(lambda: written[0] > 3 or bool(errors), 20, "somebody writes")
        monkeypatch.undo()
        assert _migrate(database) == MigrationResult(latest_version(), latest_version(), (), ("corrections",))
        before = written[0]
        await_true(lambda: written[0] > before + 2 or bool(errors), 20, "somebody writes on")
    finally:
        stop.set()
        writer.join(20)
    assert errors == []
    (correction,) = table.delta().values()
    assert correction[2]["v"] == str(written[0])
    assert triggers == database.rows(
        "SELECT oid, tgrelid, tgfoid, xmin::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY oid"
    )
    assert _migrate(database).functions == ()


_OLD_PIN_BELOW = """
CREATE OR REPLACE FUNCTION modak.pin_below(id bigint, cut bigint, whole boolean) RETURNS boolean
LANGUAGE sql AS 'SELECT true';
REVOKE EXECUTE ON FUNCTION modak.pin_below(bigint, bigint, boolean) FROM PUBLIC;
"""
_OLD_OBJECTS = """
CREATE OR REPLACE FUNCTION modak.unused(a int) RETURNS int LANGUAGE sql AS 'SELECT a';
CREATE OR REPLACE FUNCTION modak.used(a int) RETURNS int LANGUAGE sql AS 'SELECT a';
CREATE OR REPLACE FUNCTION modak.used_by_a_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
"""


def _old_pins(text: str) -> str:
    start = text.index("CREATE OR REPLACE FUNCTION modak.pin_below(")
    return text[:start] + _OLD_PIN_BELOW


def test_what_cannot_be_replaced_is_recreated_with_its_privileges(
    database: Database, other_program: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_program(
        pins=_old_pins,
        status=_replaced("t.heap_retention_lag,", "t.heap_retention_lag, true AS gone_by_now,"),
    )
    _migrate(database)
    role = f"r_{database.name}"
    database.execute(f'CREATE ROLE "{role}"')
    try:
        with database.connect() as connection:
            connection.execute(
                f'GRANT SELECT ON modak.status TO "{role}"; GRANT SELECT ON modak.status TO PUBLIC;'
                f' GRANT EXECUTE ON FUNCTION modak.pin_below(bigint, bigint, boolean) TO "{role}"'.encode()
            )
        monkeypatch.undo()
        assert _migrate(database).functions == ("pins", "status")
        with database.connect() as connection:
            require_current(connection)
            # The body is this program's: it asks for pins.
            assert connection.execute("SELECT modak.pin_below(1, 1, true)").fetchone() == (None,)
            assert connection.execute(
                "SELECT has_table_privilege(%s, 'modak.status', 'SELECT'),"
                " has_function_privilege(%s, 'modak.pin_below(bigint, bigint, boolean)', 'EXECUTE'),"
                " (SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = 'modak.status'::regclass"
                " AND a.grantee = 0),"
                " EXISTS (SELECT FROM information_schema.columns WHERE column_name = 'gone_by_now')",
                (role, role),
            ).fetchone() == (True, True, 1, False)
    finally:
        with database.connect() as connection:
            connection.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'.encode())


def test_a_function_of_which_something_depends_is_not_taken_away(
    database: Database, other_program: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_program(former=_added(_OLD_OBJECTS), tier_keys=_added(_OLD_OBJECTS.replace("used", "worn")))
    _migrate(database)
    database.execute(
        "CREATE TABLE public.t (a int)",
        "CREATE TRIGGER t AFTER INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION modak.used_by_a_trigger()",
        "CREATE VIEW public.v AS SELECT modak.used(1) AS a, modak.worn(2) AS b",
        "CREATE FUNCTION modak.of_a_user() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    )
    monkeypatch.undo()
    assert _migrate(database).functions == ("tier_keys",)
    found: str = (
        "SELECT proname FROM pg_proc WHERE pronamespace = 'modak'::regnamespace"
        " AND (proname ~ 'used|worn' OR proname = 'of_a_user') ORDER BY 1"
    )
    with database.connect() as connection:
        require_current(connection)
        left = [name for (name,) in connection.execute(found.encode()).fetchall()]
        assert left == ["of_a_user", "used", "used_by_a_trigger", "worn"]
        connection.execute("INSERT INTO public.t VALUES (1)")
        assert connection.execute("SELECT * FROM public.v").fetchone() == (1, 2)
        connection.execute("DROP VIEW public.v")
        connection.execute("DROP TABLE public.t")
        assert migrate(connection).functions == ()
        # They are removed with the next change.
        other_program("9.0", tier_keys=_added("-- A change."))
        migrate(connection)
        assert connection.execute(found.encode()).fetchall() == [("of_a_user",)]


def test_a_users_view_on_a_function_that_has_to_be_recreated_is_named(
    database: Database, other_program: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_program(pins=_old_pins)
    _migrate(database)
    database.execute("CREATE VIEW public.pinned AS SELECT modak.pin_below(1, 2, true)")
    monkeypatch.undo()
    recorded = database.rows("SELECT * FROM modak.mirror_functions ORDER BY file")
    with pytest.raises(SourceError, match=r"modak\.pin_below.*view public\.pinned") as caught:
        _migrate(database)
    assert "drop what depends on it" in caught.value.remedy
    assert database.rows("SELECT * FROM modak.mirror_functions ORDER BY file") == recorded
    database.execute("DROP VIEW public.pinned")
    assert _migrate(database).functions == ("pins",)


def test_a_failing_file_leaves_the_former_functions(database: Database, other_program: Files) -> None:
    _migrate(database)
    recorded = database.rows("SELECT * FROM modak.mirror_functions ORDER BY file")
    other_program("9.0", pins=_old_pins, wait=_added("SELECT 1/0;"))
    with pytest.raises(psycopg.errors.DivisionByZero):
        _migrate(database)
    assert database.rows("SELECT * FROM modak.mirror_functions ORDER BY file") == recorded
    assert database.rows("SELECT modak.pin_below(1, 2, true)") == [(None,)]


def test_a_program_with_other_functions_says_what_to_do(database: Database, other_program: Files) -> None:
    other_program("1.10", pins=_added("-- Of a release."))
    _migrate(database)
    with database.connect() as connection:
        require_current(connection)
        # The text of a later release.
        other_program("1.11", pins=_added("-- Of the next release."))
        with pytest.raises(SourceError, match=r"1\.11: pins differ \(last applied by mirror-pump 1\.10\)") as caught:
            require_current(connection)
        assert caught.value.remedy == "run: mirror-pump init"
        # An earlier program neither works with them nor replaces them by its own.
        other_program("1.9", pins=_added("-- Of the former release."))
        for refuses in (require_current, migrate):
            with pytest.raises(SourceError, match=r"those of mirror-pump 1\.10; this is 1\.9") as caught:
                refuses(connection)
            assert caught.value.remedy == "run mirror-pump 1.10 or a later one"
        # A program with the same functions does, whatever its version.
        other_program("1.9", pins=_added("-- Of a release."))
        require_current(connection)


def test_roles_without_rights_may_not_run_what_moves_partitions(database: Database, other_program: Files) -> None:
    """Also after the functions were replaced. A role that may not replace them is told which role may."""
    _migrate(database)
    role = f"r_{database.name}"
    open_to_all: str = (
        "SELECT proname FROM pg_proc p WHERE pronamespace = 'modak'::regnamespace"
        " AND has_function_privilege(%s, p.oid, 'EXECUTE') ORDER BY 1"
    )
    with database.connect() as connection:
        connection.execute(f'CREATE ROLE "{role}"'.encode())
        try:
            before = {name for (name,) in connection.execute(open_to_all.encode(), (role,)).fetchall()}
            assert {"pin", "release", "wait_for", "upsert", "delete"} <= before
            assert before.isdisjoint(
                {"advance", "seal", "unseal", "drop_proven", "drop_partition", "detach_partition", "put_delta",
                 "put_change", "mirror_message", "mirror_note", "mirror_watch", "retain_triggers", "lock_pins"}
            )  # fmt: skip
            other_program("9.0", **{file.name: _added("-- A change.") for file in sql.functions()})
            connection.execute(f'GRANT USAGE ON SCHEMA modak TO "{role}"'.encode())
            connection.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA modak TO "{role}"'.encode())
            connection.execute(f'SET ROLE "{role}"'.encode())
            with pytest.raises(SourceError, match="may not use or create schema modak") as caught:
                migrate(connection)
            assert "the role that owns schema modak" in caught.value.remedy
            connection.execute("RESET ROLE")
            assert migrate(connection).functions == tuple(file.name for file in sql.functions())
            after = {name for (name,) in connection.execute(open_to_all.encode(), (role,)).fetchall()}
            assert after == before
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'.encode())


def test_a_function_file_has_a_header(database: Database) -> None:
    for file in sql.functions():
        assert file.text.startswith("-- "), file.name
        assert replace(file, text=file.text + " ").checksum != file.checksum
