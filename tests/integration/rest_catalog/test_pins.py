"""Pins hold what they name: what came too late is released, and what has expired is not renewed.

The pins of `sql` are in tests/integration/reads/test_consistent_snapshot.py, leases of moments in test_moments.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import LiteralString, cast

import psycopg
import pytest

from mirror_pump.errors import TableError
from mirror_pump.model import SnapshotId, TableId
from mirror_pump.ops.moments.keeping import KeepStep, MomentOptions, keep
from mirror_pump.source.catalog.pins import (
    LAKE_ALONE,
    Pin,
    PinnedSet,
    PinRelation,
    PinSubject,
    leased_snapshots,
    of_published,
    of_snapshots,
)
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.moments import two_tables

_HELD = "SELECT table_id, pinned_lake_snapshot_id, pinned_tier_key_hi FROM modak.read_pins ORDER BY 1"
_PIN = Pin(1, 2, SnapshotId(3), None)
_PUBLISHED = "SELECT table_id, lake_snapshot_id FROM modak.cutline ORDER BY 1"


@pytest.fixture(scope="module")
def mirror(shared_database: Database, shared_warehouse: str, shared_tasks: ThreadTaskRunner) -> Mirror:
    return two_tables(shared_database, shared_warehouse, shared_tasks)


@pytest.fixture
def connection(mirror: Mirror) -> Iterator[PgConnection]:
    with connect(mirror.database.dsn, autocommit=True) as connection:
        yield connection
    assert mirror.database.rows(_HELD) == []


@pytest.fixture
def pins(connection: PgConnection) -> Iterator[PinnedSet]:
    pins = PinnedSet(lambda: nullcontext(connection), PinRelation.TABLES, 60)
    yield pins
    pins.drop()


@pytest.fixture
def published(mirror: Mirror) -> list[tuple[TableId, SnapshotId]]:
    return [(TableId(table_id), SnapshotId(snapshot_id)) for table_id, snapshot_id in mirror.database.rows(_PUBLISHED)]


def test_what_was_thinned_out_before_the_pin_was_there_is_released(
    mirror: Mirror, pins: PinnedSet, published: list[tuple[TableId, SnapshotId]]
) -> None:
    """A sweep would refuse to work because of it. The pins of the other tables hold."""
    (first, _), (second, snapshot_id) = published
    taken = pins.take(
        of_snapshots([PinSubject(first, SnapshotId(1)), PinSubject(second, snapshot_id)]),
        lambda pin: pin.snapshot_id != 1,
    )
    assert [pin.subject for pin in taken] == [second]
    assert mirror.database.rows(_HELD) == [(second, snapshot_id, LAKE_ALONE)]
    assert pins.pins == tuple(taken)


@pytest.mark.parametrize("error", [TableError("unregistered meanwhile"), KeyboardInterrupt()])
def test_a_look_that_fails_leaves_no_pin(
    mirror: Mirror, pins: PinnedSet, published: list[tuple[TableId, SnapshotId]], error: BaseException
) -> None:
    def look(_pin: Pin) -> bool:
        assert len(mirror.database.rows(_HELD)) == 2, "others see the pins by now"
        raise error

    with pytest.raises(type(error)):
        pins.take(of_published([table_id for table_id, _ in published]), look)
    assert mirror.database.rows(_HELD) == []
    assert pins.pins == ()


def test_a_table_that_has_left_the_mirror_gets_no_pin(
    mirror: Mirror, pins: PinnedSet, published: list[tuple[TableId, SnapshotId]]
) -> None:
    assert pins.take(of_snapshots([PinSubject(TableId(1), SnapshotId(1))])) == []
    assert [state.table_id for state in pins.take_published(table_ids=[TableId(1), published[0][0]])] == [
        published[0][0]
    ]
    assert [(table_id, snapshot_id) for table_id, snapshot_id, _ in mirror.database.rows(_HELD)] == published[:1]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE modak.cutline SET replicated_lsn = NULL",
        "SET LOCAL session_replication_role = replica; DELETE FROM modak.iceberg_tables",
    ],
)
def test_what_is_published_is_pinned_whatever_the_state_of_its_table(
    mirror: Mirror, connection: PgConnection, published: list[tuple[TableId, SnapshotId]], change: LiteralString
) -> None:
    """A table that is copied for the first time, and one that the Iceberg catalog does not name any more: the heap of
    either can be restored."""
    with connection.transaction(force_rollback=True):
        connection.execute(change)
        pins = PinnedSet(lambda: nullcontext(connection), PinRelation.ROWS_OF_TABLES, 60)
        states = pins.take_published(slot=mirror.settings.slot)
        assert [(pin.subject, pin.snapshot_id) for pin in pins.pins] == published
        assert all(state.published_location for state in states)


def test_an_interrupted_release_is_an_interrupt() -> None:
    """Within a transaction, the statement that was canceled has ended it."""
    connection = _InterruptedConnection()
    pins = PinnedSet(lambda: nullcontext(cast("PgConnection", connection)), PinRelation.TABLES, 60, [_PIN])
    with pytest.raises(KeyboardInterrupt):
        pins.drop()
    assert connection.statements == 2


class _InterruptedConnection:
    """Gets Ctrl-C during its first statement, in a transaction."""

    statements = 0

    def execute(self, *_: object) -> None:
        self.statements += 1
        if self.statements == 1:
            raise KeyboardInterrupt
        raise psycopg.errors.InFailedSqlTransaction


def test_pins_that_have_expired_are_not_renewed(
    mirror: Mirror, pins: PinnedSet, published: list[tuple[TableId, SnapshotId]]
) -> None:
    """Not one of several: what it named may be gone, although its row is still there."""
    pins.take(of_published([table_id for table_id, _ in published]))
    assert pins.renew()
    mirror.database.execute(
        "UPDATE modak.read_pins SET expires_at = now() WHERE pin_id = (SELECT min(pin_id) FROM modak.read_pins)"
    )
    assert not pins.renew()


def test_a_lease_is_found_by_its_name_until_it_is_over(
    mirror: Mirror, connection: PgConnection, pins: PinnedSet, published: list[tuple[TableId, SnapshotId]]
) -> None:
    slot = mirror.settings.slot
    pins.take_published(slot=slot, lake_alone=True)
    pins.name("a lease")
    leased = leased_snapshots(connection, slot, "a lease")
    assert [(pin.subject, pin.snapshot_id) for pin in leased] == published
    assert leased_snapshots(connection, slot, "another lease") == []
    mirror.database.execute("UPDATE modak.read_pins SET expires_at = now()")
    assert leased_snapshots(connection, slot, "a lease") == []


def test_two_that_keep_one_moment_at_once_leave_one_moment_and_no_pin(mirror: Mirror, connection: PgConnection) -> None:
    def meanwhile(step: KeepStep) -> None:
        if step is KeepStep.CHOSEN:
            keep(mirror.settings, MomentOptions("both"))

    with pytest.raises(TableError, match="there is a moment both already"):
        keep(mirror.settings, MomentOptions("both"), meanwhile)
    assert mirror.database.rows("SELECT count(*) FROM modak.moments") == [(1,)]
    mirror.database.execute("DELETE FROM modak.moments")
