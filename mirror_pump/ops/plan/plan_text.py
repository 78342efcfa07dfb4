"""A plan as text for people: to be read, and to be sent to the server's administrator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mirror_pump.ops.doctor.check import Outcome
from mirror_pump.ops.estimates import range_text, seconds_text, size_text
from mirror_pump.ops.plan.plan import FILES_OF_A_COMMIT, PUMP_SESSIONS, MirrorPlan
from mirror_pump.ops.plan.planned_tables import PlannedTable
from mirror_pump.ops.plan.server_load import ExistingSlot, OpenTransaction

_SHOWN = 10
"""Open transactions that are listed."""


def plan_lines(plan: MirrorPlan) -> Iterator[str]:
    """Yield the plan, section by section."""
    named = "a mirror" if plan.mirror is None else f"mirror {plan.mirror}"
    yield f"{named} of database {plan.server.database}, as of {plan.at}. Nothing was changed, and no table was read"
    yield from _section("server", _server(plan))
    yield from _section("write-ahead log and slot", _slot(plan))
    yield from _section("open transactions: a slot is created once they have ended", _transactions(plan))
    yield from _section("first copy, estimated from measured rates (docs/performance.md)", _copy(plan))
    yield from _section("requests of an object store (none in a directory)", _requests(plan))
    yield from _section("locks", _locks(plan))
    yield from _section("tables", _tables(plan))
    yield from _section("left out", (f"{unfit.table}: {unfit.reason}" for unfit in plan.left_out))
    yield from _section("not known", plan.unknown)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    content = list(lines)
    if content:
        yield f"{title}:"
        yield from (f"  {line}" for line in content)


def _server(plan: MirrorPlan) -> Iterator[str]:
    server = plan.server
    kind = "standby" if server.standby else "primary"
    service = f" ({server.service})" if server.service else ""
    yield f"database {server.database}, PostgreSQL {server.version}{service}, {kind}, wal_level {server.wal_level}"
    yield (
        f"free: {server.free_slots} slots and {server.free_walsenders} walsenders, of which the mirror takes one each;"
        f" {server.free_connections} connections, of which a pump takes {PUMP_SESSIONS}, and copies one or two for each"
        " copy worker"
    )
    yield f"settings to change that take a restart: {', '.join(server.restart) or 'none'}"
    if server.pending:
        yield f"changed, and waiting for a restart: {', '.join(server.pending)}"
    for finding in plan.findings:
        yield f"{'to change' if finding.outcome is Outcome.FAILED else 'to know'}: {finding.message}"
        yield f"    what to do: {finding.remedy}"


def _slot(plan: MirrorPlan) -> Iterator[str]:
    load, slot = plan.load, plan.slot
    over = f"measured for {load.seconds:g} s" if load.seconds else f"the mean since {load.since}"
    if load.wal_bytes_per_hour is not None:
        yield f"WAL: {size_text(load.wal_bytes_per_hour)} an hour, {over}, of the whole server"
    yield (
        f"changes: {load.changes_per_second:,.1f} rows a second in this database, {over}: about"
        f" {slot.walsender_cores:.1%} of a core for the walsender, which reads all WAL besides"
    )
    if slot.limit_bytes is None:
        yield "without a pump: the slot keeps WAL without a limit, until the server's disk is full"
    else:
        hours = "" if slot.hours_until_lost is None else f": after {_hours(slot.hours_until_lost)} at this rate"
        yield f"without a pump: the slot is lost once it keeps {size_text(slot.limit_bytes)}{hours}"
    if slot.hours_per_100_gib is not None:
        yield f"100 GiB of disk last {_hours(slot.hours_per_100_gib)} at this rate"
    fits = "" if slot.decoded_in_memory is None else f", about {slot.decoded_in_memory:,} rows of mean size,"
    mean = "" if slot.changes_per_transaction is None else f"; the mean is {slot.changes_per_transaction:,.0f} rows"
    yield (
        f"logical_decoding_work_mem: {size_text(slot.decoding_bytes)}. A transaction with more{fits} is written to the"
        f" server's disk while it is decoded{mean}"
    )
    yield (
        "catalog_xmin: while no pump runs, VACUUM keeps dead rows of system catalogs, not of tables:"
        f" {plan.load.catalog_changes_per_hour:,.0f} an hour now"
    )
    yield from map(_existing, plan.slots)


def _existing(slot: ExistingSlot) -> str:
    ages = {"tables": slot.xmin_age, "system catalogs": slot.catalog_xmin_age}
    dead_rows = ", ".join(
        f"dead rows of {what} for {age:,} transactions" for what, age in ages.items() if age is not None
    )
    wal = "" if slot.retained_bytes is None else f"{size_text(slot.retained_bytes)} of WAL"
    everything = ", ".join(filter(None, (wal, dead_rows))) or "nothing"
    spilled = ""
    if slot.spilled_transactions:
        spilled = f"; {slot.spilled_transactions:,} transactions did not fit into memory"
    use = "in use" if slot.active else "not in use"
    return f"there is {slot.kind} slot {slot.slot}, {use}, which keeps {everything}{spilled}"


def _transactions(plan: MirrorPlan) -> Iterator[str]:
    for transaction in plan.transactions[:_SHOWN]:
        yield _transaction(transaction)
    if len(plan.transactions) > _SHOWN:
        yield f"and {len(plan.transactions) - _SHOWN} more"
    if not plan.transactions:
        yield "none"


def _transaction(transaction: OpenTransaction) -> str:
    age = "" if transaction.seconds is None else f", for {seconds_text(transaction.seconds)}"
    where = f"of role {transaction.role} in database {transaction.database}{age}"
    if transaction.pid:
        return f"process {transaction.pid} ({transaction.application or 'no application_name'}) {where}"
    return f"prepared transaction {transaction.prepared_as!r} {where}: COMMIT PREPARED or ROLLBACK PREPARED it first"


def _copy(plan: MirrorPlan) -> Iterator[str]:
    copy = plan.copy
    if not copy.tables:
        return
    yield (
        f"{copy.tables} tables, {size_text(copy.heap_bytes)} of heap; the lake takes less as a rule. Two cores need"
        f" {range_text(copy.shortest_seconds, copy.longest_seconds, seconds_text)}"
    )
    if copy.least_wal_bytes is not None and copy.most_wal_bytes is not None:
        yield f"WAL that the slot keeps meanwhile: {range_text(copy.least_wal_bytes, copy.most_wal_bytes, size_text)}"


def _requests(plan: MirrorPlan) -> Iterator[str]:
    if any(request.requests_per_hour for request in plan.requests):
        yield (
            f"{FILES_OF_A_COMMIT} PUT for each table that has changed, at each commit; about a tenth more for merges"
            " and maintenance"
        )
        for request in plan.requests:
            yield f"a commit every {seconds_text(request.commit_seconds)}: {request.requests_per_hour:,} an hour"
    else:
        yield f"no table was seen to change: {FILES_OF_A_COMMIT} PUT for each that does, at each commit"


def _locks(plan: MirrorPlan) -> Iterator[str]:
    for lock in plan.locks:
        yield f"{lock.what}: {lock.lock}; waits at most {lock.waits}; held {lock.holds}"


def _tables(plan: MirrorPlan) -> Iterator[str]:
    for table in plan.tables:
        yield f"{table.table}: {'; '.join(_facts(table))}"
        if table.refusal is not None:
            yield f"    {'otherwise refused' if table.modes else 'refused'}: {table.refusal}"
            yield f"    what to do: {table.remedy}"
        if table.tiering is not None:
            yield f"    its partitions stay: {table.tiering}"


def _facts(table: PlannedTable) -> Iterator[str]:
    yield " or ".join(table.modes) or "refused"
    size = f"{size_text(table.size_bytes)}, about {table.rows:,} rows"
    yield "size not known" if table.unmeasured == table.heaps else size
    if table.heaps != 1:
        yield f"{table.heaps} partitions"
    yield f"key {', '.join(table.key)}" if table.key else "no key"
    if table.changes_per_hour:
        yield f"{table.changes_per_hour:,.0f} rows an hour"
    if table.replica_identity != "default":
        yield f"REPLICA IDENTITY {table.replica_identity.upper()}"
    if table.full_identity_bytes_per_hour:
        verb = "adds" if table.replica_identity == "full" else "would add"
        yield f"REPLICA IDENTITY FULL {verb} {size_text(table.full_identity_bytes_per_hour)} of WAL an hour"
    if table.row_security:
        yield "row security: the pump's role needs BYPASSRLS"
    if table.left_out:
        yield f"without generated columns {', '.join(table.left_out)}"


def _hours(hours: float) -> str:
    return seconds_text(hours * 3600)
