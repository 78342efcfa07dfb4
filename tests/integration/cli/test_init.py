"""`mirror-pump init` against a real server: what it creates, that it can be repeated, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from tests.support.cli import RunCommand, register_by_hand

pytestmark = pytest.mark.empty_database


def test_init_makes_everything_and_says_so(run: RunCommand, database: Database, slot: str, tmp_path: Path) -> None:
    result = run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)

    assert result.exit_code == 0, result.stderr
    publication = "publication mirror_pump: created"
    for message in ("schema modak: created", publication, f"slot {slot}: created", "ready: frontier "):
        assert message in result.stdout
    ((confirmed, plugin),) = database.rows(
        "SELECT (confirmed_flush_lsn - '0/0')::bigint, plugin FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    ((applied, name),) = database.rows("SELECT applied_lsn, database_name FROM modak.mirror_slots")
    assert plugin == "pgoutput"
    assert applied == confirmed
    assert name == database.name
    assert database.rows("SELECT warehouse FROM modak.storage_profiles WHERE is_default") == [
        (f"file://{tmp_path}/lake",)
    ]
    assert f"ready: frontier {format_lsn(applied)}" in result.stdout
    # The probe of the warehouse leaves nothing behind.
    assert list((tmp_path / "lake").iterdir()) == []


def test_init_again_needs_no_option_and_changes_nothing(
    run: RunCommand, database: Database, slot: str, tmp_path: Path
) -> None:
    run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    before = database.rows("SELECT * FROM modak.mirror_slots")

    result = run("init")

    assert result.exit_code == 0, result.stderr
    assert "schema modak: up to date" in result.stdout
    assert f"slot {slot}: there already" in result.stdout
    assert database.rows("SELECT * FROM modak.mirror_slots") == before


def test_init_resumes_where_an_earlier_one_was_killed(
    run: RunCommand, database: Database, slot: str, tmp_path: Path
) -> None:
    """The slot cannot be created in the transaction that records it, so for a moment there is a slot without a row."""
    run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    database.execute("DELETE FROM modak.mirror_slots")

    result = run("init", "--slot", slot)

    assert result.exit_code == 0, result.stderr
    assert f"slot {slot}: adopted" in result.stdout
    assert database.rows(
        "SELECT s.applied_lsn = r.confirmed_flush_lsn - '0/0' FROM modak.mirror_slots s"
        " JOIN pg_replication_slots r USING (slot_name)"
    ) == [(True,)]


def test_first_init_without_a_warehouse_is_wrong_usage_and_makes_nothing(run: RunCommand, database: Database) -> None:
    result = run("init")
    assert result.exit_code == 2
    assert "--warehouse" in result.stderr
    assert database.rows("SELECT to_regnamespace('modak')") == [(None,)]


def test_unwritable_warehouse_fails_before_anything_is_made(
    run: RunCommand, database: Database, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    result = run("init", "--warehouse", str(tmp_path / "file" / "lake"))
    assert result.exit_code == 1
    assert "cannot write" in result.stderr
    assert database.rows("SELECT to_regnamespace('modak')") == [(None,)]


@pytest.mark.unverified("its table is a row of the catalog only")
def test_warehouse_can_change_only_while_no_table_lives_in_it(
    run: RunCommand, database: Database, slot: str, tmp_path: Path
) -> None:
    run("init", "--warehouse", str(tmp_path / "old"), "--slot", slot)
    moved = run("init", "--warehouse", str(tmp_path / "new"))
    assert moved.exit_code == 0
    assert f"was file://{tmp_path}/old" in moved.stdout

    register_by_hand(database, slot)
    refused = run("init", "--warehouse", str(tmp_path / "old"))
    assert refused.exit_code == 2
    assert "unregister" in refused.stderr
    assert database.rows("SELECT warehouse FROM modak.storage_profiles") == [(f"file://{tmp_path}/new",)]


def test_another_slot_for_the_same_database_is_refused(run: RunCommand, slot: str, tmp_path: Path) -> None:
    first = run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    assert first.exit_code == 0, first.stderr
    result = run("init", "--slot", slot + "_2")
    assert result.exit_code == 2, result.stderr
    assert f"mirrored with slot {slot}" in result.stderr


@pytest.mark.unverified("its table is a row of the catalog only")
def test_lost_slot_is_created_again_only_while_no_table_needs_it(
    run: RunCommand, database: Database, slot: str, tmp_path: Path
) -> None:
    run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    with database.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    anew = run("init")
    assert anew.exit_code == 0, anew.stderr
    assert "again: the old one is gone" in anew.stdout

    register_by_hand(database, slot)
    with database.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    refused = run("init")
    assert refused.exit_code == 1
    assert slot in refused.stderr
    assert database.rows("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (slot,)) == [(0,)]


def test_s3_options_that_are_no_secrets_are_remembered(
    run: RunCommand, database: Database, slot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_SECRET_KEY", "hunter2")
    run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot, "--storage-endpoint", "http://127.0.0.1:9")

    ((config,),) = database.rows("SELECT lake_config FROM modak.storage_profiles")
    assert config == {"s3.endpoint": "http://127.0.0.1:9"}


def test_commands_before_init_say_what_to_do(run: RunCommand) -> None:
    for arguments in (["status"], ["wait", "--now", "--timeout", "1"], ["connect", "--engine", "spark"], ["run"]):
        result = run(*arguments)
        assert result.exit_code == 1
        assert "mirror-pump init" in result.stderr
