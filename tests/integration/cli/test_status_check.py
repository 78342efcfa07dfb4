"""`status --check`, `status` and `wait` when an operator has to act. The catalogs are made by hand, the slots are
real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mirror_pump.errors import SourceError
from mirror_pump.pipeline.session.pump import Pump
from mirror_pump.settings.config import Settings
from mirror_pump.source.stream.leader import Leader
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand, register_by_hand
from tests.support.wal_limit import wal_limit

pytestmark = pytest.mark.unverified("its tables are rows of the catalog only")


@pytest.fixture
def mirror(run: RunCommand, slot: str, tmp_path: Path) -> str:
    """The slot of an initialised mirror with one live table that has caught up."""
    result = run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    assert result.exit_code == 0, result.stderr
    return slot


@contextmanager
def led(database: Database, slot: str) -> Iterator[None]:
    """Holds the leadership of a pump, without a pump."""
    with Leader.acquire(database.dsn, slot):
        yield


def publish(database: Database, age: str = "0 s") -> None:
    """Changes the catalog's positions as a publish of everything committed does that happened that long ago."""
    database.execute(
        "UPDATE modak.mirror_slots SET applied_lsn = (pg_current_wal_lsn() - '0/0')::bigint,"
        f" applied_commit_time = now() - interval '{age}', applied_at = now() - interval '{age}'",
        "UPDATE modak.cutline SET replicated_lsn = (SELECT applied_lsn FROM modak.mirror_slots)",
    )


def lose(database: Database, slot: str) -> None:
    """Makes the server invalidate the slot, as if the pump had been away for too long."""
    with database.connect() as connection:
        connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            for _ in range(4):
                connection.execute("SELECT pg_logical_emit_message(false, 'x', 'y'), pg_switch_wal()")
            connection.execute("CHECKPOINT")
            lost = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s"
            await_true(lambda: connection.execute(lost, (slot,)).fetchone() == (True,), 20, "the slot is lost")
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")


def drop(database: Database, slot: str) -> None:
    with database.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def replace(database: Database, slot: str) -> None:
    """Drops and creates the slot, as a user might: changes in between are lost to it."""
    drop(database, slot)
    with database.connect() as connection:
        connection.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))


@pytest.mark.further
def test_the_status_says_how_much_wal_the_slot_may_still_hold_back(
    run: RunCommand, database: Database, mirror: str
) -> None:
    def reserve() -> int | None:
        value = json.loads(run("status", "--json").stdout)["slot"]["safe_wal_bytes"]
        assert value is None or isinstance(value, int)
        return value

    assert reserve() is None, "without a limit"
    with database.connect() as connection:
        connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            await_true(lambda: reserve() is not None, 20, "there is a limit")
            before = reserve()
            for _ in range(2):
                connection.execute("SELECT pg_logical_emit_message(false, 'x', 'y'), pg_switch_wal()")
            after = reserve()
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")
    assert before is not None
    assert after is not None
    assert 0 < after < before <= (1 << 30) + (1 << 26)


@pytest.mark.further
@pytest.mark.parametrize(
    ("harm", "message"),
    [(lose, "was invalidated by the server"), (drop, "does not exist"), (replace, "another program consumed or")],
)
def test_a_slot_that_no_pump_can_go_on_from(
    run: RunCommand, database: Database, mirror: str, harm: Callable[[Database, str], None], message: str
) -> None:
    """`status`, `status --check`, `wait` and the pump use the same words, and say since when and what to do."""
    register_by_hand(database, mirror)
    publish(database)
    ((moved,),) = database.rows("SELECT to_char(applied_at, 'YYYY-MM-DD HH24:MI \"UTC\"') FROM modak.mirror_slots")
    harm(database, mirror)

    with closing(ThreadTaskRunner()) as runner, pytest.raises(SourceError) as refused:
        Pump(Settings(dsn=database.dsn, slot=mirror), runner=runner).run(once=True)
    seen = run("status")
    checked = run("status", "--check")
    document = json.loads(run("status", "--json").stdout)
    waited = run("wait", "--now", "--timeout", "600")

    assert seen.exit_code == 0
    assert (checked.exit_code, waited.exit_code) == (1, 1)
    for text in (str(refused.value), seen.stdout, checked.stdout, document["slot"]["error"], waited.stderr):
        assert message in text
        # A terminal may break lines anywhere.
        assert f"The frontier last moved at {moved}" in " ".join(text.split())
    for text in (refused.value.remedy, seen.stdout, checked.stdout, document["slot"]["remedy"], waited.stderr):
        assert "mirror-pump resync --all" in " ".join(text.split())
        assert "mirror-pump run" not in text, "to start a pump is of no use"
    assert message in document["last_error"]["error"]
    assert document["last_error"]["retry_in"] is None
    (alert,) = document["alerts"]
    assert (alert["severity"], alert["message"]) == ("critical", document["slot"]["error"])
    if harm is lose:
        assert document["slot"]["wal_status"] == "lost"
        if major_version() >= 17:
            assert document["slot"]["invalidation_reason"] == "wal_removed"


@pytest.mark.further
def test_check_is_silent_when_all_is_well(run: RunCommand, database: Database, mirror: str) -> None:
    register_by_hand(database, mirror)
    publish(database)
    with led(database, mirror):
        result = run("status", "--check")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
        result = run("status", "--check", "--json")
        assert (result.exit_code, json.loads(result.stdout)["alerts"]) == (0, [])


@pytest.mark.further
def test_check_needs_a_leader(run: RunCommand, database: Database, mirror: str) -> None:
    result = run("status", "--check")
    assert result.exit_code == 1
    assert "no pump leads" in result.stdout
    assert "mirror-pump run" in result.stdout


@pytest.mark.further
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE modak.mirror_tables SET state = 'failed', error = 'column x: NaN'", "public.t: column x: NaN"),
        ("DROP PUBLICATION {publication}", "does not exist"),
        (
            'UPDATE modak.mirror_tables SET retention = \'{{"stopped": "rows differ"}}\'',
            "public.t: RETENTION STOPPED: rows differ",
        ),
    ],
)
def test_check_tells_what_needs_a_person(
    run: RunCommand, database: Database, mirror: str, change: str, message: str
) -> None:
    register_by_hand(database, mirror)
    publish(database)
    ((publication,),) = database.rows("SELECT publication_name FROM modak.mirror_slots")
    with led(database, mirror):
        assert run("status", "--check").exit_code == 0
        database.execute(change.format(publication=publication))
        result = run("status", "--check")
        assert result.exit_code == 1
        assert message in result.stdout
        result = run("status", "--check", "--json")
        assert result.exit_code == 1
        assert message.rpartition(": ")[2] in json.loads(result.stdout)["alerts"][0]["message"]


@pytest.mark.further
def test_check_compares_the_lag(run: RunCommand, database: Database, mirror: str) -> None:
    register_by_hand(database, mirror)
    publish(database, "10 min")
    # Without a leader no publish can happen, so the command does not wait.
    result = run("status", "--check", "--max-lag", "1h")
    assert "behind" not in result.stdout
    result = run("status", "--check", "--max-lag", "5min")
    assert result.exit_code == 1
    assert "more than the 300 s that --max-lag allows" in result.stdout
    with led(database, mirror):
        result = run("status", "--check", "--max-lag", "5min", "--json")
        assert result.exit_code == 1
        assert "--max-lag" in json.loads(result.stdout)["alerts"][0]["message"]


@pytest.mark.further
@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-lag", "5min"),
        ("--min-wal-time", "1h"),
        ("--check", "--min-wal-time", "soon"),
        ("--check", "--max-lag", "soon"),
        ("--check", "--watch"),
    ],
)
def test_check_refuses_what_makes_no_sense(run: RunCommand, mirror: str, arguments: tuple[str, ...]) -> None:
    assert mirror
    assert run("status", *arguments).exit_code == 2


@pytest.fixture
def small_limit(database: Database) -> Iterator[int]:
    """The server keeps at most 64 MiB of WAL for a slot."""
    with wal_limit(database, 64):
        yield 64 << 20


@pytest.mark.further
def test_how_long_the_slot_lasts(
    run: RunCommand, database: Database, mirror: str, small_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room is the server's own figure, and the rate is that of the WAL since the last checkpoint."""
    monkeypatch.setenv("MIRROR_PUMP_LIMITS__WAL_RATE_WINDOW", "0.1")
    with database.connect() as connection:
        connection.execute("CHECKPOINT")
        for _ in range(8):
            connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")
    await_true(lambda: json.loads(run("status", "--json").stdout)["slot"]["wal_bytes_per_second"], 20, "measured")
    slot = json.loads(run("status", "--json").stdout)["slot"]
    ((safe,),) = database.rows("SELECT safe_wal_size FROM pg_replication_slots WHERE slot_name = %s", (mirror,))
    segment = 16 << 20
    assert slot["safe_wal_bytes"] == pytest.approx(safe, abs=1 << 20)
    assert slot["safe_wal_bytes"] <= small_limit + segment
    assert slot["wal_rate_seconds"] > 0
    lasts = slot["safe_wal_bytes"] / slot["wal_bytes_per_second"]
    assert slot["max_outage_seconds"] == pytest.approx(lasts)
    assert "at the present rate" in " ".join(run("status").stdout.split())

    # Without a pump, it is an alert. A pump that leads without errors moves the slot.
    monkeypatch.setenv("MIRROR_PUMP_WAL_WARN_WITHIN", "86400")
    nothing = f"nothing moves replication slot {mirror}"
    assert nothing in run("status", "--check").stdout
    with led(database, mirror):
        assert nothing not in run("status", "--check").stdout
        assert run("status", "--check").exit_code == 0
        asked = run("status", "--check", "--min-wal-time", "24h")
        assert asked.exit_code == 1
        assert "--min-wal-time asks for" in asked.stdout
        assert run("status", "--check", "--min-wal-time", "0s").exit_code == 0

    # The user's own limit counts if it is lower.
    monkeypatch.setenv("MIRROR_PUMP_WAL_GUARD_BYTES", "1kB")
    slot = json.loads(run("status", "--json").stdout)["slot"]
    assert (slot["safe_wal_bytes"], slot["max_outage_seconds"]) == (0, 0.0)


@pytest.mark.further
def test_without_a_limit_the_slot_lasts(run: RunCommand, mirror: str) -> None:
    slot = json.loads(run("status", "--json").stdout)["slot"]
    assert mirror
    assert (slot["safe_wal_bytes"], slot["max_outage_seconds"]) == (None, None)
    assert "at the present rate" not in run("status").stdout
    assert "--min-wal-time" not in run("status", "--check", "--min-wal-time", "24h").stdout
