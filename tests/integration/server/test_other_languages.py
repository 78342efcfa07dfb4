"""What a server says is understood by its SQLSTATE and by fields of the protocol, not by English words."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from mirror_pump.errors import ConnectionLost, SourceError
from mirror_pump.runtime.password_command import RotatingDsn
from mirror_pump.source.connect import connect, replication_connect
from mirror_pump.source.loads.filtered_rows import reason_of
from mirror_pump.testing.database import Database
from tests.support.german_server import german_server


@pytest.mark.parametrize("changed", [{"password": "wrong"}, {"user": "nobody"}, {"dbname": "none"}])
def test_a_refused_connection_needs_an_operator(database: Database, changed: dict[str, Any]) -> None:
    with german_server(database.dsn) as dsn:
        for attempt in (connect, replication_connect):
            with pytest.raises(SourceError, match=r"der Server lehnt das ab$") as failure:
                attempt(make_conninfo(dsn, **changed))
            assert not isinstance(failure.value, ConnectionLost)
            assert "pg_hba.conf" in failure.value.remedy


def test_a_refused_password_of_a_program_is_asked_for_again(database: Database) -> None:
    with german_server(database.dsn) as dsn:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        del parts["password"]
        with pytest.raises(ConnectionLost, match="der Server lehnt das ab") as failure:
            connect(RotatingDsn(make_conninfo("", **parts), "echo wrong"))
    assert "password_command" in failure.value.remedy


def test_the_column_of_a_refused_value_is_named(database: Database) -> None:
    with german_server(database.dsn) as dsn, psycopg.connect(dsn) as connection:
        connection.execute("CREATE TEMPORARY TABLE t (a int, b int)")
        with pytest.raises(psycopg.DataError) as failure, connection.cursor().copy("COPY t FROM STDIN") as copy:
            copy.write("1\tx\n")
        connection.rollback()
    assert reason_of(failure.value) == "column b: der Server lehnt das ab"
