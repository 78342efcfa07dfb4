"""The two commands that repair: `resync --where-different`, and `verify --repair`.

Both mark the tables as those that come back after a pause, so that a pump compares them with their heaps and replaces
the rows that differ (mirror_pump.pipeline.copy.difference_copier). Which tables are refused, and why, is `resync`'s to
say (mirror_pump.ops.resync.resync).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirror_pump.errors import Interrupted, MirrorPumpError, TableError, with_remedy
from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import Lsn, TableId, TableState
from mirror_pump.ops.resync.new_slot import Say
from mirror_pump.ops.resync.resync import Resync, ResyncAction, TableResync, nothing_streamed, resync
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.ops.verify.verification import TableReport, VerifyReport, verify
from mirror_pump.pipeline.flow.steps import Observer, unobserved
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.resync import resync_candidates
from mirror_pump.source.connect import connect, source_errors

Observe = Callable[[TableProgress], None]

_COUNTED_ROWS = 10_000
"""Rows that differ of which `--dry-run` says in which way: some kilobytes of memory each."""
_STATUS = "`mirror-pump status` lists the tables that are mirrored, and shows when one is live"


@dataclass(frozen=True)
class TableRepair(JsonDocument):
    """What was found in one table, and done."""

    table: str
    heap_rows: int = 0
    lake_rows: int = 0
    missing: int = 0
    """Keys that only the heap had. Rows that were written before their change had reached the lake count, too."""
    extra: int = 0
    """Keys that only the lake had."""
    different: int = 0
    """Keys with other values in the lake, or more than one row."""
    different_rows: int = 0
    """How many differ in all. `--dry-run` counts rows, and the first 10,000 of them by kind."""
    repaired: bool = False
    """Whether the rows that differed were replaced."""
    copied: bool = False
    """Whether all rows were copied, since the table differed too much or a file could not be read. Nothing was counted
    then."""
    frontier: Lsn | None = None
    """A frontier at which the lake has the repaired rows, or at which they were compared. None: they were not."""
    error: MirrorPumpError | None = None
    """Why the table was not compared or not repaired."""

    @classmethod
    def of(cls, table: TableResync) -> TableRepair:
        """What a resync did that compared the table."""
        if table.error is not None or table.action is ResyncAction.LEAVE:
            return cls(table.table, error=table.error)
        if table.state is not TableState.LIVE or table.note:
            reason = table.note or f"it is {table.state}"
            return cls(table.table, error=TableError(reason, _STATUS))
        rows = table.replaced
        if rows is None:
            return cls(table.table, table.rows, repaired=True, copied=True)
        differing = rows.missing + rows.extra + rows.different
        return cls(
            table.table,
            rows.heap_rows,
            rows.lake_rows,
            rows.missing,
            rows.extra,
            rows.different,
            differing,
            repaired=differing > 0,
            frontier=rows.frontier,
        )

    @classmethod
    def of_comparison(cls, report: TableReport) -> TableRepair:
        """What a repair of the table would replace."""
        comparison = report.comparison
        if comparison is None:
            return cls(report.table, error=TableError(str(report.problem), _STATUS))
        kinds = Counter(difference["kind"] for difference in comparison.differences)
        return cls(
            report.table,
            comparison.heap_rows,
            comparison.lake_rows,
            kinds["missing"],
            kinds["extra"],
            kinds["different"],
            comparison.different_rows,
            frontier=report.frontier,
        )


@dataclass(frozen=True)
class Repair:
    """What became of tables that were to be repaired."""

    resync: Resync
    """That compared them, or would."""
    tables: tuple[TableRepair, ...]
    """As in `resync`, and in its order."""

    @property
    def failed(self) -> bool:
        """Whether a table was not compared or not repaired."""
        return any(table.error is not None for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return the document that docs/cli-json.md describes."""
        document = self.resync.to_json()
        tables = zip(document["tables"], self.tables, strict=True)
        return {**document, "tables": [table | repaired.to_json() for table, repaired in tables]}


def repair_where_different(
    settings: Settings,
    tables: Sequence[str] | Collection[TableId],
    *,
    say: Say,
    on_progress: Callable[[Sequence[TableProgress]], None],
    observer: Observer = unobserved,
) -> Repair:
    """Have rows replaced that differ, of these tables, or of all. Raises as `resync` does."""
    done = resync(
        settings, tables, wait=True, say=say, on_progress=on_progress, observer=observer, where_different=True
    )
    return Repair(done, tuple(map(TableRepair.of, done.tables)))


def what_differs(settings: Settings, plan: Resync, observe: Observe = lambda _: None) -> Repair:
    """Compare the tables of which a repair would replace rows, as `verify` does. Changes nothing."""
    refused = {table.table: TableRepair(table.table, error=table.error) for table in plan.tables if not _begins(table)}
    names = [table.table for table in plan.tables if _begins(table)]
    limits = settings.limits.model_copy(update={"verify_shown_rows": _COUNTED_ROWS})
    reports = verify(settings.model_copy(update={"limits": limits}), names, observe=observe).tables if names else ()
    repairs = refused | {report.table: TableRepair.of_comparison(report) for report in reports}
    return Repair(plan, tuple(repairs[table.table] for table in plan.tables))


def _begins(table: TableResync) -> bool:
    return table.action is not ResyncAction.LEAVE and table.error is None


def verify_and_repair(
    settings: Settings,
    names: Sequence[str],
    observe: Observe = lambda _: None,
    *,
    say: Say = lambda _: None,
    replay_feeds: bool = False,
) -> VerifyReport:
    """Compare as `verify` does, repair tables that differ, and compare these again. Whatever happens to one of them
    meanwhile, the report has what was found and done."""
    report = verify(settings, names, None, observe, replay_feeds=replay_feeds)
    different = {table.table: table for table in report.tables if table.comparison is not None and not table.equal}
    if not different:
        return report
    errors = _repaired(settings, different, observe, say)
    again, reason = _compared_again(settings, [name for name in different if name not in errors], observe)

    def latest(table: TableReport) -> TableReport:
        if table.table in errors:
            return replace(table, problem=f"not repaired: {with_remedy(errors[table.table])}")
        if table.table not in different or table.comparison is None:
            return table
        compared = again.get(table.table) or replace(table, problem=f"repaired, but not compared again: {reason}")
        return replace(compared, repaired=table.comparison.different_rows)

    tables = tuple(map(latest, report.tables))
    frontiers = [table.frontier for table in tables if table.frontier is not None]
    return replace(report, frontier=max([report.frontier, *frontiers]), tables=tables)


def _repaired(
    settings: Settings, different: Mapping[str, TableReport], observe: Observe, say: Say
) -> dict[str, MirrorPumpError]:
    """Have these tables repaired. Returns, by table, why one was not."""
    gone = TableError("it is not mirrored any more", _STATUS)
    errors: dict[str, MirrorPumpError] = {
        name: nothing_streamed(name) if report.compared is not None else gone for name, report in different.items()
    }

    def on_progress(tables: Sequence[TableProgress]) -> None:
        for table in tables:
            observe(table)

    try:
        with (
            connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-verify") as connection,
            source_errors("reading the mirrored tables"),
        ):
            candidates = resync_candidates(connection, settings.slot)
        tables = [table.table_id for table in candidates if str(table.name) in different]
        if tables:
            repair = repair_where_different(settings, tables, say=say, on_progress=on_progress)
            for table in repair.tables:
                errors.pop(table.table, None)
                if table.error is not None:
                    errors[table.table] = table.error
    except Interrupted as error:
        raise Interrupted(
            "interrupted; the tables that were found different are repaired by the next pump",
            "`mirror-pump status` shows when they are live again",
        ) from error
    except MirrorPumpError as error:
        return dict.fromkeys(different, error)
    return errors


def _compared_again(settings: Settings, names: Sequence[str], observe: Observe) -> tuple[dict[str, TableReport], str]:
    """The reports on these tables; and if there are none, why: one may not be mirrored any more."""
    if not names:
        return {}, ""
    try:
        return {table.table: table for table in verify(settings, names, None, observe).tables}, ""
    except MirrorPumpError as error:
        return {}, with_remedy(error)
