"""`mirror-pump register`: adds tables to the mirror."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from mirror_pump.cli.arguments.options import COPIES, command
from mirror_pump.cli.arguments.register_options import BARE, RegisterOptions
from mirror_pump.cli.commands.alter import alter_feeds, alter_tables
from mirror_pump.cli.terminal.confirmation import confirm
from mirror_pump.cli.terminal.output import count_text, each_table, exit_code, remark, report_error, say
from mirror_pump.cli.terminal.progress import copy_progress
from mirror_pump.errors import UsageError
from mirror_pump.model import TableMode
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.register.preview import TablePreview
    from mirror_pump.ops.register.registration import RegisterOutcome
    from mirror_pump.ops.register.selection import SelectedTables
    from mirror_pump.ops.register.table_wish import TableOptions


def add(app: typer.Typer) -> None:
    command(app, "register", COPIES, bare=BARE)(register)


def register(settings: Settings, options: RegisterOptions) -> int:
    """Add tables to the mirror and copy their rows while writes continue.

    A table needs a primary key or a replica identity index. If register is killed, run it again: it resumes, and
    does not repeat finished chunks. If a table is refused, the others still proceed; exit code 1 reports it.

    With a pattern, or --all, the tables that match now are registered, small ones first; run it again for those that
    are created later. Partitions come with their root. --dry-run shows their sizes, and which would be refused.

    With --heap-retention, old partitions of a range-partitioned table are dropped from the heap once the lake
    provably holds them. With --mode tiered the same happens without replication: partitions are copied when they
    leave. docs/retention.md and docs/tiered.md explain how their rows are then read and corrected. The command
    first shows which partitions leave and when, and asks for confirmation.

    With --changes, every change is kept, too, in an Iceberg table beside the mirrored one (docs/changes.md).

    With --alter, a mirrored table gets another layout, or a change feed, while the pump runs. Another order applies
    to the next files, and to others as maintenance rewrites them. Other partitions have the table copied again;
    readers keep what they have until it is complete.
    """
    from mirror_pump.ops.register.preview import estimate, preview
    from mirror_pump.ops.register.selection import follow, select_tables
    from mirror_pump.ops.setup.stored_settings import complete

    wish = options.wish()
    settings = complete(settings)
    if options.alter:
        return _alter(settings, options, wish)
    if options.follow_new is False:
        return each_table(options.followed, lambda pattern: _unfollow(settings, pattern), "not ended")
    selected = select_tables(settings, options.names, options.exclude or ())
    unmatched = _tell_left_out(selected, follows=bool(options.follow_new))
    if options.dry_run:
        previews = preview(settings, selected.names, wish)
        _show(previews)
        for line in estimate(settings, previews):
            say(line)
        return exit_code([*unmatched, *(table.error for table in previews)])
    if wish.retention is not None and not wish.retention.keep_heap and not options.yes:
        previews = preview(settings, selected.names, wish)
        if any(table.retention is not None for table in previews):
            _show(previews)
            confirm(
                "Register?",
                about_to="partitions are about to leave the heap",
                remedy="check with --dry-run, then give --yes",
                refused="nothing was registered",
            )
    if options.follow_new:
        follow(settings, options.followed, options.exclude or (), wish.profile)
    outcomes = put_under_mirror(settings, selected.names, wish, wait=not options.no_wait, on_refused=_report_failure)
    were_live = [outcome for outcome in outcomes if outcome.was_live and outcome.error is None]
    for outcome in outcomes:
        if not (selected.by_pattern and outcome in were_live):
            _report(outcome, wish, waits=not options.no_wait)
    if selected.by_pattern and were_live:
        remark(f"{count_text(len(were_live))} tables are registered already, and live: nothing was copied")
    return exit_code([*unmatched, *(outcome.error for outcome in outcomes)])


def _unfollow(settings: Settings, pattern: str) -> None:
    from mirror_pump.ops.register.selection import unfollow

    unfollow(settings, pattern)
    say(f"{pattern}: new tables do not join any more; those that are registered stay")


def _alter(settings: Settings, options: RegisterOptions, wish: TableOptions) -> int:
    if options.changes_feed:
        return alter_feeds(settings, options.names, wish.feed)
    return alter_tables(
        settings,
        options.names,
        options.layout(),
        wait=not options.no_wait,
        dry_run=options.dry_run,
        as_json=options.as_json,
    )


def put_under_mirror(
    settings: Settings,
    names: Sequence[str],
    wish: TableOptions,
    *,
    wait: bool,
    on_refused: Callable[[RegisterOutcome], None] = lambda _: None,
) -> Sequence[RegisterOutcome]:
    """Registers the tables, and with `wait` shows their copies until they are live. `on_refused`: as of `register`."""
    from mirror_pump.ops.register.registration import register as begin
    from mirror_pump.ops.resync.snapshots import rest

    with copy_progress() as show:
        outcomes = begin(settings, names, wait, show, wish=wish, on_refused=on_refused)
    if wish.snapshots is not None and wait:
        rest(settings)
    return outcomes


def _tell_left_out(selected: SelectedTables, *, follows: bool) -> list[UsageError]:
    """Reports tables that match and cannot be mirrored, and patterns that mean nothing. Returns errors about these.
    `follows`: tables that match may come later."""
    for name, reason in selected.unfit.items():
        remark(f"{name}: left out: {reason}")
    errors = []
    for pattern in selected.unmatched:
        if follows:
            remark(f"{pattern}: no table matches yet")
            continue
        errors.append(UsageError("no table matches", "check it with psql's \\dt"))
        report_error(errors[-1], "not registered", pattern)
    return errors


def _report(outcome: RegisterOutcome, wish: TableOptions, *, waits: bool) -> None:
    from mirror_pump.ops.reads.engine_remarks import variant_remark
    from mirror_pump.ops.register.preview import as_text
    from mirror_pump.source.relations.column_choices import decimal_option

    if outcome.error is not None:
        # What was refused has been reported before the copies.
        if outcome.registered:
            _report_failure(outcome)
    elif outcome.was_live:
        live = ", and live" if wish.snapshots is None else ""
        say(f"{outcome.table}: is registered already{live}: nothing was copied")
    elif wish.mode is TableMode.TIERED:
        say(f"{outcome.table}: live; its partitions are copied into the lake when they are due")
    elif not waits:
        say(f"{outcome.table}: {'is registered already' if outcome.was_registered else 'registered'}")
    elif wish.snapshots is not None:
        say(f"{outcome.table}: copied; its changes are not followed")
    else:
        before = "is registered already; " if outcome.was_registered else ""
        copied = f", {count_text(outcome.rows)} rows copied" if outcome.rows else ""
        say(f"{outcome.table}: {before}live{copied}")
    if wish.choices.append_only and outcome.registered:
        remark(f"{outcome.table}: PostgreSQL refuses UPDATE and DELETE of it until it is unregistered", "warning")
    if outcome.whole_rows:
        remark(
            f"{outcome.table}: has no key, so its rows are found in the lake by all their values: an UPDATE or DELETE"
            " costs more than with one",
            "warning",
            "nothing; with a primary key it is copied again and is like any other table",
        )
    if outcome.generated_left_out:
        left_out = ", ".join(outcome.generated_left_out)
        remark(
            f"{outcome.table}: generated columns left out: {left_out}"
            " (PostgreSQL publishes stored ones since version 18, virtual ones never)",
            "warning",
        )
    name = shlex.quote(outcome.table)
    again = f"`mirror-pump unregister {name}`, then `mirror-pump register {name}"
    if outcome.variants:
        remark(
            f"{outcome.table}: {variant_remark(outcome.variants)}",
            "warning",
            "nothing, if your engines read variants (docs/readers.md); else"
            f" {again} --column {shlex.quote(f'{outcome.variants[0]}=string')}`",
        )
    for number in outcome.numbers_as_text:
        remark(
            f"{outcome.table}: {as_text(number)}",
            "warning",
            f"nothing, if queries cast it; else {again} {decimal_option(number)}`",
        )


def _report_failure(outcome: RegisterOutcome) -> None:
    assert outcome.error is not None
    happened = "copy failed" if outcome.registered else "not registered"
    report_error(outcome.error, happened, outcome.table)


def _show(previews: Sequence[TablePreview]) -> None:
    """Prints the previews, and the errors of tables that would be refused."""
    from mirror_pump.ops.reads.engine_remarks import variant_remark

    for table in previews:
        for line in table.lines():
            say(line)
        if table.variants:
            say(f"  {variant_remark(table.variants)}")
        if table.error is not None:
            report_error(table.error, "would not be registered", table.table)
