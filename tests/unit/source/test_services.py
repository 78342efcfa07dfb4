"""Remedies for each service, and its row of docs/services.md."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from mirror_pump.source.server import ServerSettings, how_to_set
from mirror_pump.source.services import SERVICES, SIGNS, ManagedService, service_of

_PAGE = (Path(__file__).parents[3] / "docs" / "services.md").read_text(encoding="utf-8")
_OF_TYPE = {"str": "", "int": 0, "bool": False, "str | None": None}


def _server(signs: list[str]) -> ServerSettings:
    """A server of which only the signs count."""
    values = {field.name: _OF_TYPE.get(str(field.type)) for field in fields(ServerSettings)}
    return ServerSettings(**{**values, "signs": signs})  # type: ignore[arg-type]


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_each_sign_leads_to_the_services_own_remedy(service: ManagedService) -> None:
    for sign in service.signs:
        server = _server([sign])
        assert server.service is service
        assert how_to_set(server, "wal_level", "'logical'") == (
            f"set {service.logical} {service.place}, then restart the server"
        )
        limit = how_to_set(server, "max_slot_wal_keep_size", "'100GB'")
        assert limit == f"set max_slot_wal_keep_size = '100GB' {service.place}"


def test_a_server_without_signs_is_set_by_sql() -> None:
    server = _server([])
    assert how_to_set(server, "wal_level", "'logical'") == (
        "ALTER SYSTEM SET wal_level = 'logical', then restart the server"
    )
    assert how_to_set(server, "synchronized_standby_slots", "'a'").endswith("; SELECT pg_reload_conf()")


def test_a_sign_is_one_services_and_the_more_particular_service_counts() -> None:
    assert len(SIGNS) == len(set(SIGNS))
    aurora = service_of(["rds_replication", "rds_superuser", "aurora_version"])
    assert aurora is not None
    assert aurora.name == "Amazon Aurora"


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_the_page_has_a_row_of_each(service: ManagedService) -> None:
    (row,) = re.findall(rf"^\| \*\*{re.escape(service.name)}\*\* .*$", _PAGE, re.MULTILINE)
    assert f"`{service.logical}`" in row
    assert any(f"`{sign}`" in row for sign in service.signs)
    assert service.stream_role is None or f"`{service.stream_role}`" in row
