"""The two commands that repair: `resync --where-different`, and `verify --repair`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mirror_pump.errors import SourceError, TableError
from mirror_pump.model import MirroredTable
from mirror_pump.ops.resync.resync import Resync, ResyncAction, plan_resync
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.repair import TableRepair, repair
from mirror_pump.ops.verify.verification import TableReport, VerifyReport, verify
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import connect
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.stream.slot import COPY_AGAIN

Observe = Callable[[TableProgress], None]


def repair_where_different(
    settings: Settings,
    names: Sequence[str],
    *,
    dry_run: bool,
    observe: Observe = lambda _: None,
) -> list[TableRepair]:
    """Repair the named tables, or all mirrored ones. With `dry_run`, only compare them.

    Raises TableError for a name that is not mirrored or tiered, SourceError if the slot is lost: what the stream has
    missed cannot be told from the slot of a repair. Then the pump compares all tables (`needs_pump`).
    """
    plan = plan_resync(settings, names)
    if plan.lost is not None:
        raise SourceError(f"{plan.lost}", COPY_AGAIN)
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-repair") as connection:
        tables = [load_table(connection, table.table_id) for table in plan.tables]
    return repair(settings, [table for table in tables if table is not None], dry_run=dry_run, observe=observe)


def needs_pump(plan: Resync) -> bool:
    """Whether tables are compared by a pump, as copies: the slot is lost, or that is under way already."""
    actions = {table.action for table in plan.tables}
    return plan.lost is not None or (ResyncAction.CONTINUE in actions and ResyncAction.COPY not in actions)


def verify_and_repair(
    settings: Settings,
    names: Sequence[str],
    engine: ComparisonEngine | None = None,
    observe: Observe = lambda _: None,
    *,
    replay_feeds: bool = False,
) -> VerifyReport:
    """Compare as `verify` does, repair tables that differ, and compare these again."""
    report = verify(settings, names, engine, observe, replay_feeds=replay_feeds)
    different = [table.table for table in report.tables if table.comparison is not None and not table.equal]
    if not different:
        return report
    done = {table.table: table for table in repair(settings, _loaded(settings, different), observe=observe)}
    repaired = [name for name in different if done[name].error is None]
    again = verify(settings, repaired, engine, observe) if repaired else report
    by_name = {table.table: table for table in again.tables} if repaired else {}
    return replace(
        report,
        frontier=max(report.frontier, again.frontier),
        tables=tuple(_after(by_name.get(table.table, table), done.get(table.table)) for table in report.tables),
    )


def _after(table: TableReport, done: TableRepair | None) -> TableReport:
    """The last comparison of a table, with what was done before."""
    if done is None:
        return table
    if done.error is not None:
        return replace(table, problem=f"not repaired: {done.error}. {done.error.remedy}")
    return replace(table, repaired=done.differing)


def _loaded(settings: Settings, names: Sequence[str]) -> list[MirroredTable]:
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-repair") as connection:
        tables = []
        for name in names:
            table = load_table(connection, resolve_name(connection, name)[1])
            if table is None:
                raise TableError(f"{name} is not mirrored any more", "`mirror-pump status` lists the tables that are.")
            tables.append(table)
    return tables
