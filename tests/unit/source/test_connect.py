"""Connection strings: what is fixed, what the user may choose, and what is never shown."""

from __future__ import annotations

import socket

import psycopg
import pytest
from psycopg import conninfo

from mirror_pump.errors import ConnectionLost, LakeError, SourceError, TransientRefusal, UsageError
from mirror_pump.source.connect import (
    PINNED_SETTINGS,
    adbc_uri,
    as_source_error,
    connect,
    describe_dsn,
    replication_connect,
    session_time_zone,
)
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog


@pytest.mark.parametrize("dsn", ["host=h dbname=d user=u", "postgresql://u@h/d"])
def test_settings_are_pinned_after_the_users_options(dsn: str) -> None:
    separator = "&" if "?" in dsn else "?"
    given = (
        f"{dsn}{separator}options=-c%20TimeZone%3DAsia/Tokyo" if "://" in dsn else f"{dsn} options='-c TimeZone=CET'"
    )
    parameters = conninfo.conninfo_to_dict(adbc_uri(given))
    options = str(parameters["options"])
    for name, value in PINNED_SETTINGS.items():
        assert "-c {}={}".format(name, value.replace(" ", "\\ ")) in options
    assert options.rindex("TimeZone=UTC") > options.index("TimeZone=")
    assert parameters["client_encoding"] == "UTF8"
    assert (parameters["host"], parameters["dbname"], parameters["user"]) == ("h", "d", "u")


def test_the_users_time_out_stays() -> None:
    assert conninfo.conninfo_to_dict(adbc_uri("host=h connect_timeout=3"))["connect_timeout"] in (3, "3")


def test_passwords_do_not_show() -> None:
    with pytest.raises(UsageError) as failure:
        connect("postgresql://u:secret@[h/d")
    assert "secret" not in f"{failure.value} {failure.value.remedy} {failure.value.__cause__}"
    assert describe_dsn("postgresql://u:secret@h:5433/d") == "database d on h:5433"


@pytest.mark.parametrize("value", ["soon", "10s", "nan"])
def test_a_time_out_that_is_no_number_is_told(value: str) -> None:
    for opened in (connect, replication_connect, session_time_zone):
        with pytest.raises(UsageError, match="bad value for connect_timeout"):
            opened(f"host=127.0.0.1 port=1 password=secret connect_timeout={value}")
    catalog = PostgresCatalog(f"host=127.0.0.1 port=1 connect_timeout={value}", "file:///w")
    with pytest.raises(LakeError, match="bad value for connect_timeout") as failure:
        catalog.namespaces()
    assert failure.value.remedy == "mend the connection string"


def test_an_unreachable_server_is_worth_a_retry() -> None:
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        connect("host=127.0.0.1 port=1")


def test_a_server_that_does_not_answer_leaves_time_for_the_next() -> None:
    """The first one takes connections and says nothing, the second refuses them: both were tried."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionLost, match=r"timeout expired; .*refused"):
            replication_connect(f"host=127.0.0.1,127.0.0.1 port={port},1 user=u dbname=d connect_timeout=1")


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (psycopg.errors.AdminShutdown("bye"), True),
        (psycopg.errors.ConnectionFailure("gone"), True),
        (psycopg.OperationalError("the connection is closed"), True),
        (psycopg.errors.ReadOnlySqlTransaction("a standby"), True),
        (psycopg.errors.LockNotAvailable("busy"), False),
        (psycopg.errors.InsufficientPrivilege("no"), False),
        (psycopg.errors.DiskFull("full"), False),
        (psycopg.InterfaceError("misuse"), False),
    ],
)
def test_only_lost_connections_are_lost(error: psycopg.Error, lost: bool) -> None:
    translated = as_source_error(error, "testing")
    assert isinstance(translated, SourceError)
    assert isinstance(translated, ConnectionLost) is lost
    assert "while testing" in str(translated)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (psycopg.errors.LockNotAvailable("busy"), True),
        (psycopg.errors.DeadlockDetected("a circle"), True),
        (psycopg.errors.SerializationFailure("changed meanwhile"), True),
        (psycopg.errors.QueryCanceled("by an operator"), True),
        (psycopg.errors.ObjectInUse("streams"), True),
        (psycopg.errors.DiskFull("full"), True),
        (psycopg.errors.IoError("a disk"), True),
        (psycopg.errors.InternalError_("cache lookup failed for relation 16384"), True),
        (psycopg.errors.DataCorrupted("invalid page"), False),
        (psycopg.errors.UndefinedTable("no modak.tables"), False),
        (psycopg.errors.InsufficientPrivilege("no"), False),
        (psycopg.errors.ObjectNotInPrerequisiteState("the slot was invalidated"), False),
        (psycopg.InterfaceError("misuse"), False),
    ],
)
def test_a_refusal_passes_if_its_reason_may_be_gone(error: psycopg.Error, passes: bool) -> None:
    translated = as_source_error(error, "testing")
    assert isinstance(translated, TransientRefusal) is passes
    assert "try again" in translated.remedy or not passes
