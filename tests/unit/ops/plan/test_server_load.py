"""Rates between two moments of a server's counters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mirror_pump.ops.plan.server_load import OpenTransaction, ServerCounters, load_between, still_open

_SINCE = datetime(2026, 1, 1, tzinfo=UTC)
_AT = _SINCE + timedelta(hours=100)


def _counters(seconds: float, wal: int, transactions: int, changes: int) -> ServerCounters:
    return ServerCounters(_AT + timedelta(seconds=seconds), wal, transactions, changes, changes * 2, _SINCE)


def test_rates_are_those_between_the_moments() -> None:
    load = load_between(_counters(0, 10**6, 50, 4000), _counters(10, 3 * 10**6, 60, 5000))
    assert load.seconds == 10
    assert load.wal_bytes_per_hour == 2 * 10**6 * 360
    assert load.changes_per_second == 100
    assert load.transactions_per_second == 1
    assert load.catalog_changes_per_hour == 2000 * 360


def test_without_a_measurement_rows_count_since_the_server_began_to() -> None:
    """WAL and transactions have no such beginning."""
    load = load_between(_counters(0, 10**6, 50, 360_000), _counters(0.1, 10**6, 51, 360_000))
    assert load.seconds == 0
    assert load.wal_bytes_per_hour is load.transactions_per_second is None
    assert round(load.changes_per_second, 3) == 1
    assert load.since == _SINCE.isoformat()


def test_counters_that_were_reset_meanwhile_make_no_negative_rate() -> None:
    load = load_between(_counters(0, 10**6, 50, 4000), _counters(10, 10**6, 50, 3))
    assert load.changes_per_second == load.catalog_changes_per_hour == load.wal_bytes_per_hour == 0


def test_transactions_that_come_and_go_are_left_out() -> None:
    def transaction(pid: int, transaction_id: str, seconds: float | None) -> OpenTransaction:
        return OpenTransaction(pid, "shop", "app", "", "", transaction_id, seconds)

    of_reader, prepared = transaction(2, "11", None), transaction(0, "7", 90.0)
    first = [transaction(1, "10", 5.0), of_reader, transaction(3, "12", 1.0), prepared]
    last = [of_reader, transaction(1, "10", 15.0), transaction(3, "20", 0.1), prepared]
    assert [each.pid for each in still_open(first, last)] == [0, 1, 2]
