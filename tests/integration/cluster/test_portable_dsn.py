"""Tasks on other machines connect with what libpq found on this one: in the environment, and in files."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mirror_pump.engine.spark_runtime.session import libpq_access
from mirror_pump.source.connect import adbc_uri, connect, portable_dsn
from mirror_pump.testing.database import Database


def _portable(dsn: str) -> str:
    with connect(dsn, autocommit=True) as connection:
        return portable_dsn(dsn, connection)


def _reaches(dsn: str, database: Database) -> None:
    with psycopg.connect(adbc_uri(dsn)) as connection:
        assert connection.info.dbname == database.name


def test_the_environment_goes_with_the_dsn(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    given = conninfo_to_dict(database.dsn)
    variables = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
    for name, variable in variables.items():
        monkeypatch.setenv(variable, str(given[name]))
    monkeypatch.setenv("PGSSLMODE", "disable")
    dsn = _portable("options='-c search_path=x -c work_mem=5MB'")
    for variable in (*variables.values(), "PGSSLMODE"):
        monkeypatch.delenv(variable)
    _reaches(dsn, database)
    found = conninfo_to_dict(dsn)
    assert found["sslmode"] == "disable"
    # The user's own, without those that each connection sets for itself.
    assert found["options"] == "-c search_path=x -c work_mem=5MB"
    assert "application_name" not in found


def test_a_password_file_and_a_service_file_are_read_here(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {name: str(value) for name, value in conninfo_to_dict(database.dsn).items()}
    passwords, services = tmp_path / "pgpass", tmp_path / "services"
    password = given.pop("password")
    passwords.write_text(f"*:*:*:*:{password}\n")
    passwords.chmod(0o600)
    services.write_text("[shop]\n" + "".join(f"{name}={value}\n" for name, value in given.items()))
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    portable = [_portable(make_conninfo("", **given)), _portable("service=shop")]
    monkeypatch.delenv("PGPASSFILE")
    monkeypatch.delenv("PGSERVICEFILE")
    for dsn in portable:
        _reaches(dsn, database)
        # And as the JDBC driver of maintenance does, which knows neither of the files.
        access = libpq_access(dsn)
        assert (access.hosts, access.database) == (((given["host"], int(given["port"])),), database.name)
        assert (access.user, access.password) == (given["user"], password)
