"""Poolers before the server are told from the server by the first connection and by doctor, and nothing else is.

`tests/support/pooler.py` stands for PgBouncer; the texts of others are in public sources."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo

from mirror_pump.database.poolers import PAGE
from mirror_pump.errors import ConnectionLost, LakeError, SourceError
from mirror_pump.ops.doctor.check import Outcome, Site
from mirror_pump.ops.doctor.examination import examine
from mirror_pump.ops.doctor.server import DATABASE, POOLER
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import connect, replication_connect
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.testing.database import Database
from tests.support.pooler import Startup, pooler_before

_REFUSALS = {
    "PgBouncer": [
        ("08P01", "unsupported startup parameter: options"),
        ("08P01", "unsupported startup parameter in options: search_path"),
        ("08P01", "unsupported options startup parameter: only '-c config=val' is allowed"),
        ("3D000", "no such database: shop"),
        ("08P01", "no more connections allowed (max_client_conn)"),
    ],
    "Neon's PgBouncer": [
        (
            "08P01",
            "unsupported startup parameter in options: jit. Please use unpooled connection or remove this parameter",
        )
    ],
    "RDS Proxy": [
        ("0A000", "Feature not supported: RDS Proxy currently doesn’t support command-line options."),
        ("0A000", "Feature not supported: RDS Proxy currently doesn't support streaming replication mode."),
    ],
    "Supavisor": [
        ("XX000", "Tenant or user not found"),
        ("XX000", "(ENOIDENTIFIER) no tenant identifier provided (external_id or sni_hostname required)"),
    ],
    "pgcat": [("58000", 'No pool configured for database: "shop", user: "me"')],
    "a pooler": [("08P01", "what no other one says")],
}


@pytest.mark.parametrize("name", _REFUSALS)
def test_refusals_name_the_pooler(name: str, database: Database) -> None:
    """Whatever the SQLSTATE: one of them means another thing on a server, another one that the next attempt may do."""
    for refusal in _REFUSALS[name]:
        with pooler_before(database.dsn, refusal=refusal) as pooler:
            for opened in (connect, replication_connect):
                with pytest.raises(SourceError, match=rf"{name} answers there") as raised:
                    opened(pooler.dsn)
                assert not isinstance(raised.value, ConnectionLost)
                assert f"127.0.0.1:{pooler.port}" in str(raised.value)
                assert PAGE in raised.value.remedy


def test_a_stream_is_refused(database: Database) -> None:
    """Where settings are left out, a connection for the stream is refused all the same."""
    with (
        pooler_before(database.dsn, startup=Startup.LEFT_OUT) as pooler,
        pytest.raises(SourceError, match="PgBouncer answers there"),
    ):
        replication_connect(pooler.dsn)


@pytest.mark.parametrize("by_session", [False, True])
def test_lost_settings_are_refused(by_session: bool, database: Database) -> None:
    """A pooler that leaves the settings out gets no session of ours: names and values would mean other things."""
    with pooler_before(database.dsn, by_session=by_session, startup=Startup.LEFT_OUT) as pooler:
        with pytest.raises(SourceError, match="gives no session of its own: the session has search_path") as raised:
            connect(pooler.dsn)
        assert f"a pooler answers at 127.0.0.1:{pooler.port}" in str(raised.value)
        assert PAGE in raised.value.remedy
        (examined,) = examine(Settings(dsn=pooler.dsn), (DATABASE,)).checks
        assert examined.outcome is Outcome.FAILED
        assert f"127.0.0.1:{pooler.port}" in examined.findings[0].message
        with pytest.raises(LakeError, match="gives no session of its own") as refused:
            PostgresCatalog(pooler.dsn, "file:///nowhere").namespaces()
        assert PAGE in refused.value.remedy


def test_transactions_of_one_client_in_several_sessions(database: Database) -> None:
    """Settings arrive in each session, but the session is another one after each transaction."""
    assert _doctor(database, by_session=False) is Outcome.FAILED


def test_a_proxy_that_keeps_sessions(database: Database) -> None:
    """Some services have such proxies in front of each server: a warning, and connections work."""
    assert _doctor(database, by_session=True) is Outcome.WARNING


def _doctor(database: Database, *, by_session: bool) -> Outcome:
    with pooler_before(database.dsn, by_session=by_session, startup=Startup.PASSED_ON) as pooler:
        with connect(pooler.dsn, autocommit=True) as connection:
            assert connection.execute("SHOW search_path").fetchone() == ("pg_catalog,pg_temp",)
        (examined,) = examine(Settings(dsn=pooler.dsn), (POOLER,)).checks
        assert f":{pooler.port}" in examined.findings[0].message
        return examined.outcome


def test_a_server_is_no_pooler(database: Database) -> None:
    """Also if names in its errors read like those of poolers."""
    (finding,) = POOLER.run(Site(Settings(dsn=database.dsn)))
    assert finding.outcome is Outcome.OK
    for name in (
        "no such database: x",
        "RDS Proxy ",
        "query_wait_timeout",
        "pgbouncer",
        "Please use unpooled connection",
    ):
        with pytest.raises(SourceError, match="does not exist") as raised:
            connect(make_conninfo(database.dsn, dbname=name))
        assert PAGE not in raised.value.remedy
        assert "answers there" not in str(raised.value)


def test_a_login_trigger_that_changes_the_session(database: Database) -> None:
    """It is no pooler, and it is refused: statements of ours would mean other things."""
    with database.connect() as connection:
        if connection.info.server_version < 170000:
            pytest.skip("login event triggers exist since PostgreSQL 17")
        connection.execute(
            "CREATE FUNCTION welcome() RETURNS event_trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'public', false); END $$"
        )
        connection.execute("CREATE EVENT TRIGGER welcome ON login EXECUTE FUNCTION welcome()")
        try:
            with pytest.raises(SourceError, match="a login event trigger or a proxy") as raised:
                connect(database.dsn)
            assert "pooler" not in str(raised.value)
        finally:
            connection.execute("DROP EVENT TRIGGER welcome")
