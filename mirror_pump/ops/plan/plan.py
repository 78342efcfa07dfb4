"""The plan of a mirror: one read-only session reads catalogs and statistics, measures, and computes what follows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mirror_pump.errors import UsageError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import TableId
from mirror_pump.ops.doctor.check import Finding, Outcome, warning
from mirror_pump.ops.doctor.replication import room_findings
from mirror_pump.ops.estimates import copy_seconds
from mirror_pump.ops.plan.planned_tables import (
    PlannedMode,
    PlannedTable,
    TableCounts,
    TableRates,
    count_tables,
    plan_tables,
)
from mirror_pump.ops.plan.server_load import (
    ExistingSlot,
    OpenTransaction,
    PlanSettings,
    ServerLoad,
    counted_seconds,
    load_between,
    measured_seconds,
    read_counters,
    read_settings,
    read_slots,
    read_transactions,
    still_open,
)
from mirror_pump.pipeline.stream.batch_pace import REMOTE_FILES_PER_HOUR
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.matched_tables import matched_tables
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.table_patterns import EVERY_TABLE, is_pattern, parse_pattern
from mirror_pump.source.server import (
    ServerProblem,
    ServerSettings,
    ServerSubject,
    read_server,
    require_version,
    server_problems,
)
from mirror_pump.source.stream.synchronous import SynchronousCommits, synchronous_commits

WALSENDER_SECONDS = 2.5e-6
"""CPU of the walsender for a change (docs/performance.md#where-the-cpu-goes)."""
FILES_OF_A_COMMIT = 10
"""For each table that has changed (docs/operations.md#what-fresh-data-costs)."""
PUMP_SESSIONS = 7
"""docs/session-settings.md."""

_COMMIT_SECONDS = (1, 10, 60, 600)
_MEMORY_OF_A_CHANGE = 100
"""Bytes that the server keeps for a change besides its row, while it decodes a transaction. About."""
_STREAMED = frozenset({PlannedMode.MIRRORED, PlannedMode.APPEND_ONLY})
_RESTART = {
    ServerSubject.WAL_LEVEL: "wal_level",
    ServerSubject.SLOTS: "max_replication_slots",
    ServerSubject.SENDERS: "max_wal_senders",
}


@dataclass(frozen=True)
class PlannedServer:
    """The server"""

    database: str
    version: str
    standby: bool
    service: str | None
    """The managed service that it belongs to, as far as roles tell"""
    wal_level: str
    restart: tuple[str, ...]
    """Settings to change that take a restart"""
    pending: tuple[str, ...]
    """Settings that have been changed, for which the restart is missing"""
    free_slots: int
    free_walsenders: int
    free_connections: int


@dataclass(frozen=True)
class SlotForecast:
    """What the mirror's slot does to the server while no pump runs"""

    limit_bytes: int | None
    """max_slot_wal_keep_size: the slot is lost once it keeps more WAL; None: never, the disk fills instead"""
    hours_until_lost: float | None
    """At the WAL rate that was measured; None without a limit or a rate"""
    hours_per_100_gib: float | None
    """How long 100 GiB of the server's disk last at that rate"""
    walsender_cores: float
    """CPU of the walsender, in cores, at the present rate of changes"""
    decoding_bytes: int
    """logical_decoding_work_mem: a larger transaction is written to the server's disk while it is decoded"""
    decoded_in_memory: int | None
    """Rows of mean size that fit into it"""
    changes_per_transaction: float | None
    """The mean of transactions that write; None without a measurement. How large the largest are is not recorded"""


@dataclass(frozen=True)
class CopyForecast:
    """The first copy of all tables that can be mirrored, estimated by the rates of docs/performance.md"""

    tables: int
    heap_bytes: int
    """What is read. The lake takes less as a rule, since its files are compressed"""
    shortest_seconds: float
    longest_seconds: float
    least_wal_bytes: float | None
    """WAL that the slot keeps meanwhile, in the shortest time; None if no WAL rate was measured"""
    most_wal_bytes: float | None


@dataclass(frozen=True)
class RequestEstimate:
    """PUT requests of an object store"""

    commit_seconds: int
    """A commit after so many seconds"""
    requests_per_hour: int
    """If the tables change that changed while it was measured; at most the default ceiling of `files_per_hour`"""


@dataclass(frozen=True)
class PlannedLock:
    """A lock that the mirror takes on tables (docs/operations.md#locks-on-your-tables)"""

    what: str
    lock: str
    waits: str
    """How long it waits for others at most"""
    holds: str


@dataclass(frozen=True)
class UnfitTable:
    """A table that a pattern means, and that can never be mirrored"""

    table: str
    reason: str


@dataclass(frozen=True)
class MirrorPlan(JsonDocument):
    """What a mirror of a database would be, and what it would do to the server"""

    at: str
    """When it was made, by the server's clock"""
    server: PlannedServer
    findings: tuple[Finding, ...]
    """What has to be changed, and what an operator should know"""
    load: ServerLoad
    slot: SlotForecast
    copy: CopyForecast
    requests: tuple[RequestEstimate, ...]
    slots: tuple[ExistingSlot, ...]
    transactions: tuple[OpenTransaction, ...]
    """Open while it was measured, in any database: a slot is created once they have ended"""
    locks: tuple[PlannedLock, ...]
    tables: tuple[PlannedTable, ...]
    """Small ones first"""
    left_out: tuple[UnfitTable, ...]
    unknown: tuple[str, ...]
    """What could not be known, and how to know it"""
    mirror: str | None = None
    """Its name; None without one"""


def make_plan(settings: Settings, names: Sequence[str], seconds: float) -> MirrorPlan:
    """The plan of these tables and patterns, or of all tables, from a measurement of so many seconds.

    Raises UsageError for a name or pattern that means no table, and SourceError.
    """
    with reading_session(settings) as connection:
        require_version(connection)
        table_ids, left_out = _selected(connection, names)
        server, limits = read_server(connection), read_settings(connection)
        first, before = read_counters(connection), count_tables(connection, table_ids)
        transactions = read_transactions(connection)
        time.sleep(seconds)
        last, after = read_counters(connection), count_tables(connection, table_ids)
        transactions = still_open(transactions, read_transactions(connection))
        seconds_measured = measured_seconds(first, last)
        rates = {} if server.in_recovery else _rates(before, after, seconds_measured, counted_seconds(last))
        tables = plan_tables(connection, table_ids, after, rates)
        slots = read_slots(connection)
        with source_errors("reading synchronous_standby_names"):
            commits = synchronous_commits(connection)
        problems = [
            problem
            for problem in server_problems(connection, server, slot_exists=False)
            # The roles that run it are others.
            if problem.subject is not ServerSubject.RIGHTS
        ]
    load = load_between(first, last)
    changing = sum(rate.changes > 0 for rate in rates.values())
    return MirrorPlan(
        at=last.at.isoformat(timespec="seconds"),
        server=PlannedServer(
            database=limits.database,
            version=limits.version,
            standby=server.in_recovery,
            service=None if server.service is None else server.service.name,
            wal_level=server.wal_level,
            restart=tuple(_RESTART[problem.subject] for problem in problems if problem.subject in _RESTART),
            pending=tuple(limits.pending),
            free_slots=server.slots - server.used_slots,
            free_walsenders=server.senders - server.used_senders,
            free_connections=limits.connections - limits.used_connections,
        ),
        findings=(*_findings(problems, commits), *room_findings(server)),
        load=load,
        slot=_slot(server, limits, load, after.values()),
        copy=_copy(tables, load),
        requests=tuple(
            RequestEstimate(every, min(REMOTE_FILES_PER_HOUR, FILES_OF_A_COMMIT * changing * 3600 // every))
            for every in _COMMIT_SECONDS
        ),
        slots=slots,
        transactions=tuple(transactions),
        locks=_locks(tables),
        tables=tables,
        left_out=left_out,
        unknown=tuple(_unknown(server, limits, load, tables)),
        mirror=settings.mirror,
    )


@contextmanager
def reading_session(settings: Settings) -> Iterator[PgConnection]:
    """The plan's only session. It cannot write, and waits for no lock for long."""
    dsn = settings.require_dsn()
    with connect(dsn, autocommit=True, application_name="mirror-pump-plan", lock_timeout="2s") as connection:
        with source_errors("beginning a session that only reads"):
            connection.execute("SET default_transaction_read_only = on")
            connection.execute("SET statement_timeout = '60s'")
        yield connection


def _selected(connection: PgConnection, names: Sequence[str]) -> tuple[list[TableId], tuple[UnfitTable, ...]]:
    """The tables that names and patterns mean. A name is a pattern too: to look it up as SQL does takes USAGE on its
    schema. Raises UsageError if one means nothing."""
    matched = matched_tables(connection, [parse_pattern(name) for name in names or [EVERY_TABLE]], ())
    unmatched = [text for text in matched.unmatched if names]
    if any(map(is_pattern, unmatched)):
        raise UsageError(f"no table matches {', '.join(filter(is_pattern, unmatched))}", "check it with psql's \\dt")
    # Partitions and what is no table: their refusals say what to do.
    others = [resolve_name(connection, name)[1] for name in unmatched]
    unfit = tuple(UnfitTable(name, reason) for name, reason in matched.unfit.items())
    return [*matched.tables.values(), *dict.fromkeys(others)], unfit


def _findings(problems: Iterable[ServerProblem], commits: SynchronousCommits | None) -> Iterator[Finding]:
    for problem in problems:
        yield Finding(Outcome.FAILED if problem.fatal else Outcome.WARNING, problem.message, problem.remedy)
    if commits is not None:
        yield warning(commits.message, commits.remedy)


def _rates(
    before: Mapping[TableId, TableCounts], after: Mapping[TableId, TableCounts], seconds: float, span: float
) -> dict[TableId, TableRates]:
    """What is written to each table an hour: in the `seconds` that were measured, or else in the `span` since the
    server began to count."""
    hours = (seconds or span) / 3600
    rates = {}
    for table_id, counts in after.items():
        then = before.get(table_id) if seconds else None
        changes = counts.changes - (then.changes if then else 0)
        old_rows = counts.updated + counts.deleted - (then.updated + then.deleted if then else 0)
        rates[table_id] = TableRates(max(0, changes) / hours, max(0, old_rows) / hours)
    return rates


def _slot(
    server: ServerSettings, limits: PlanSettings, load: ServerLoad, tables: Iterable[TableCounts]
) -> SlotForecast:
    counts = list(tables)
    size, rows = sum(table.size_bytes for table in counts), sum(table.rows for table in counts)
    limit = None if server.keep_mb < 0 else server.keep_mb * 2**20
    rate = load.wal_bytes_per_hour
    return SlotForecast(
        limit_bytes=limit,
        hours_until_lost=limit / rate if limit is not None and rate else None,
        hours_per_100_gib=100 * 2**30 / rate if rate else None,
        walsender_cores=load.changes_per_second * WALSENDER_SECONDS,
        decoding_bytes=limits.decoding_bytes,
        decoded_in_memory=int(limits.decoding_bytes / (size / rows + _MEMORY_OF_A_CHANGE)) if size and rows else None,
        changes_per_transaction=(
            load.changes_per_second / load.transactions_per_second if load.transactions_per_second else None
        ),
    )


def _copy(tables: Sequence[PlannedTable], load: ServerLoad) -> CopyForecast:
    copied = [table for table in tables if _STREAMED & set(table.modes)]
    size = sum(table.size_bytes for table in copied)
    shortest, longest = copy_seconds(size)
    per_second = None if load.wal_bytes_per_hour is None else load.wal_bytes_per_hour / 3600
    return CopyForecast(
        tables=len(copied),
        heap_bytes=size,
        shortest_seconds=shortest,
        longest_seconds=longest,
        least_wal_bytes=None if per_second is None else per_second * shortest,
        most_wal_bytes=None if per_second is None else per_second * longest,
    )


_SHORT = "for one short transaction"
_ALWAYS = (
    PlannedLock(
        "register",
        "SHARE ROW EXCLUSIVE on the table: writers wait, readers do not; ACCESS EXCLUSIVE where heap retention needs a"
        " DEFAULT partition",
        "lock_timeout (2 s) a try, for two minutes",
        _SHORT,
    ),
    PlannedLock(
        "copies, also of resync",
        "ACCESS SHARE on the heap: ALTER TABLE, TRUNCATE and VACUUM FULL wait",
        "200 ms",
        "while a chunk is read",
    ),
)
_WITHOUT_KEY = PlannedLock(
    "the beginning of a copy without a key", "SHARE: writers wait", "200 ms", "for some milliseconds"
)
_PARTITIONS = (
    PlannedLock(
        "a partition that is to leave", "SHARE ROW EXCLUSIVE on the partition: its writers wait", "200 ms", _SHORT
    ),
    PlannedLock(
        "dropping a partition, making one",
        "ACCESS EXCLUSIVE on the table, then on the partition: all wait",
        "200 ms, then 50 ms for each further lock",
        _SHORT,
    ),
)
LOCKS = (*_ALWAYS, _WITHOUT_KEY, *_PARTITIONS)
"""Of the locks that docs/operations.md has, those that a table sees from its first day on."""


def _locks(tables: Sequence[PlannedTable]) -> tuple[PlannedLock, ...]:
    """The locks that these tables may see."""
    modes = {mode for table in tables for mode in table.modes}
    locks = list(_ALWAYS) if modes else []
    if any(not table.key and _STREAMED & set(table.modes) for table in tables):
        locks.append(_WITHOUT_KEY)
    if modes & {PlannedMode.HEAP_RETENTION, PlannedMode.TIERED}:
        locks.extend(_PARTITIONS)
    return tuple(locks)


def _unknown(
    server: ServerSettings, limits: PlanSettings, load: ServerLoad, tables: Sequence[PlannedTable]
) -> Iterator[str]:
    yield "free space on the server's disk: no SQL tells it. Compare it with the hours that 100 GiB of WAL last"
    yield "how large the largest transactions are: PostgreSQL keeps no record. Batch jobs are what to ask for"
    yield "whether the roles of admin, pump and readers have their rights: `mirror-pump doctor`, as each of them"
    if server.in_recovery:
        yield "what is written to tables: a standby does not count it. Ask the primary"
    if not load.seconds:
        yield "WAL an hour: it was not measured. Give --measure 60s, at a busy hour"
    if (server.effective_wal_level or server.wal_level) != "logical":
        yield "how much WAL wal_level = logical adds (old keys, whole new rows of UPDATE): measure again once it is set"
    if not limits.sees_sessions:
        yield "since when other roles' transactions are open: a role in pg_read_all_stats sees it"
    unmeasured = [table.table for table in tables if table.unmeasured]
    if unmeasured:
        some = ", ".join(unmeasured[:3]) + (f" and {len(unmeasured) - 3} more" if len(unmeasured) > 3 else "")
        yield f"the whole size of {some}: neither VACUUM nor ANALYZE has seen all of it. Run ANALYZE"
