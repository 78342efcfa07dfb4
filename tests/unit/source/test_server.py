"""What a server lacks for a mirror, by its settings: PostgreSQL 15 to 19, and what still needs a restart."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_pump.errors import SourceError
from mirror_pump.source.server import (
    ServerProblem,
    ServerSettings,
    ServerSubject,
    how_to_set,
    names_of_list,
    require_version,
    server_problems,
)

BEFORE_19 = ServerSettings(
    role="admin", superuser=False, wal_level="replica", effective_wal_level=None, output_plugins=None, slots=10,
    used_slots=0, senders=10, used_senders=0, in_recovery=False, may_replicate=True, signs=[], may_create=True,
    keep_mb=100_000, idle_timeout=0, schema_exists=False, encoding="UTF8",
)  # fmt: skip
DEFAULT_19 = replace(BEFORE_19, effective_wal_level="replica", output_plugins="pgoutput, test_decoding")


def _problems(settings: ServerSettings, version: int = 190000) -> dict[ServerSubject, ServerProblem]:
    connection: Any = SimpleNamespace(info=SimpleNamespace(server_version=version, dbname="shop"))
    return {problem.subject: problem for problem in server_problems(connection, settings, slot_exists=False)}


def test_before_19_replica_is_too_low() -> None:
    assert not BEFORE_19.decodes
    problem = _problems(BEFORE_19, 180006)[ServerSubject.WAL_LEVEL]
    assert (problem.fatal, problem.of_stream) == (True, True)
    assert problem.remedy == "ALTER SYSTEM SET wal_level = 'logical', then restart the server"


@pytest.mark.parametrize("effective", ["replica", "logical"])
def test_from_19_on_replica_is_enough(effective: str) -> None:
    settings = replace(DEFAULT_19, effective_wal_level=effective)
    assert settings.decodes
    assert _problems(settings) == {}


def test_what_needs_a_restart_in_19_too() -> None:
    settings = replace(DEFAULT_19, wal_level="minimal", effective_wal_level="minimal", slots=0, senders=0)
    remedies = {subject: problem.remedy for subject, problem in _problems(settings).items()}
    assert remedies == {
        ServerSubject.WAL_LEVEL: "ALTER SYSTEM SET wal_level = 'replica', then restart the server",
        ServerSubject.SLOTS: "ALTER SYSTEM SET max_replication_slots = 10, then restart the server",
        ServerSubject.SENDERS: "ALTER SYSTEM SET max_wal_senders = 10, then restart the server",
    }


def test_messages_name_the_level_in_effect_where_it_differs() -> None:
    assert BEFORE_19.wal_level_text == DEFAULT_19.wal_level_text == "wal_level replica"
    assert replace(DEFAULT_19, effective_wal_level="logical").wal_level_text == "wal_level replica (logical in effect)"


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("pgoutput, test_decoding", ["pgoutput", "test_decoding"]),
        # What ALTER SYSTEM SET output_plugin_libraries = 'wal2json, pgoutput' makes: one name.
        ('"wal2json, pgoutput"', ["wal2json, pgoutput"]),
        ('"a b",pgoutput', ["a b", "pgoutput"]),
        ('""', []),
        ("", []),
    ],
)
def test_the_libraries_of_output_plugins(setting: str, names: list[str]) -> None:
    assert names_of_list(setting) == names
    problems = _problems(replace(DEFAULT_19, output_plugins=setting))
    if "pgoutput" in names:
        assert problems == {}
    else:
        libraries = ", ".join(f"'{name}'" for name in (*names, "pgoutput"))
        remedy = how_to_set(DEFAULT_19, "output_plugin_libraries", libraries)
        assert remedy.endswith("'pgoutput'; SELECT pg_reload_conf()")
        assert problems[ServerSubject.PLUGIN].remedy == remedy


@pytest.mark.parametrize(("version", "remedy"), [(140023, "upgrade the server"), (200000, "upgrade mirror-pump")])
def test_versions_that_are_refused(version: int, remedy: str) -> None:
    problem = _problems(replace(DEFAULT_19, wal_level="logical"), version)[ServerSubject.VERSION]
    assert problem.fatal
    assert problem.message.endswith("mirror-pump works with 15 to 19")
    assert problem.remedy == remedy
    connection: Any = SimpleNamespace(info=SimpleNamespace(server_version=version))
    with pytest.raises(SourceError, match="mirror-pump works with 15 to 19"):
        require_version(connection)
