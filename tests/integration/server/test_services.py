"""A service is recognised by a role, a setting or a function that its servers have."""

from __future__ import annotations

import pytest

from mirror_pump.source.connect import connect
from mirror_pump.source.server import read_server
from mirror_pump.testing.database import Database


def _service(database: Database) -> str | None:
    with connect(database.dsn, autocommit=True) as connection:
        service = read_server(connection).service
        return service.name if service is not None else None


@pytest.mark.empty_database
def test_settings_and_functions_tell_a_service(database: Database) -> None:
    assert _service(database) is None
    with database.connect() as connection:
        connection.execute(f"ALTER DATABASE {database.name} SET cnpg.config_sha256 = 'f0'".encode())
        assert _service(database) == "CloudNativePG"
        connection.execute("CREATE FUNCTION public.aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '16.1' $$")
        assert _service(database) == "CloudNativePG", "anyone may create that"
        connection.execute("CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '' $$")
        assert _service(database) == "Amazon Aurora"
