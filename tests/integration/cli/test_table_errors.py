"""How commands show errors of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.testing.database import Database
from tests.support.cli import RunCommand, register_by_hand


@pytest.mark.unverified("its table is a row of the catalog only")
def test_status_names_a_failed_table_once(run: RunCommand, database: Database, slot: str, tmp_path: Path) -> None:
    """A table's error begins with its name, since it has no other context in the log and in JSON."""
    run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    register_by_hand(database, slot, state="failed")
    database.execute("UPDATE modak.mirror_tables SET error = 'public.t: a change of one row takes 300 bytes'")
    shown = run("status")
    assert shown.exit_code == 0, shown.stderr
    assert "public.t: a change of one row takes 300 bytes" in shown.stdout
    assert "public.t: public.t" not in shown.stdout


@pytest.mark.unverified("its table is a row of the catalog only")
def test_a_refusal_does_not_keep_other_tables_from_being_unregistered(
    run: RunCommand, database: Database, slot: str, tmp_path: Path
) -> None:
    run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    register_by_hand(database, slot)
    done = run("unregister", "absent", "public.t", "a.b.c.d")
    assert done.exit_code == 1, done.stderr
    assert "public.t is no longer mirrored" in done.stdout
    assert "absent" in done.stderr
    assert "a.b.c.d" in done.stderr
    with database.connect() as connection:
        assert connection.execute("SELECT count(*) FROM modak.mirror_tables").fetchone() == (0,)


@pytest.mark.unverified("no table is registered")
def test_an_argument_that_is_not_utf8_is_wrong_usage(run: RunCommand, slot: str, tmp_path: Path) -> None:
    """Python has such bytes as single surrogates."""
    run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    done = run("pause", "public.t\udcff")
    assert (done.exit_code, "an argument is not UTF-8" in done.stderr) == (2, True), done.stderr
    assert "report it" not in done.stderr
