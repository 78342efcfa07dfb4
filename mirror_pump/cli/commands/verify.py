"""`mirror-pump verify`: compares heap and lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirror_pump.cli.arguments.completion import tables_argument
from mirror_pump.cli.arguments.options import SLOT, STORAGE, AsJson, command
from mirror_pump.cli.terminal.output import count_text, remark, say, write_json
from mirror_pump.cli.terminal.progress import verify_progress
from mirror_pump.model import format_lsn
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.verify.kept_files import FeedReport
    from mirror_pump.ops.verify.verification import VerifyReport


def add(app: typer.Typer) -> None:
    @command(app, "verify", (*SLOT, "master", *STORAGE))
    def verify(
        settings: Settings,
        tables: Annotated[
            list[str] | None, tables_argument(r"Table names as Postgres reads them \[all live tables]")
        ] = None,
        repair: Annotated[
            bool, typer.Option("--repair", help="Replace the rows of the lake that differ, and compare again")
        ] = False,
        feeds: Annotated[
            bool, typer.Option("--feeds", help="Also replay change feeds, from one frontier to the present one")
        ] = False,
        as_json: AsJson = False,
    ) -> int:
        """Compare every column of every row of the heap with the lake, at a single frontier, while writes continue.

        Concurrent writes cause no false alarm, and a single changed byte is found. If a table's columns or partitions
        change meanwhile, its comparison starts again, up to five times. Exit code 1 if a table differs or could not be
        compared. Of a tiered table the partitions are compared that heap and lake both hold.

        Tables of up to 64 MiB are compared by DuckDB inside this process (pip install 'mirror-pump[sql]'), larger ones
        by Spark, which takes some ten seconds to start. Both compare the same.

        The files of change feeds and of kept moments are looked for, too. With --feeds, what each feed says happened
        since an earlier frontier that the lake still has is laid over the mirror of then, by DuckDB: that has to make
        the mirror of now.

        With --repair, a pump replaces the rows of the lake that differ, while writes continue; one is started if none
        runs. Until a table is repaired, its readers keep what they have. Exit code 1 if a table differs afterwards, or
        cannot be repaired in this way.
        """
        from mirror_pump.ops.setup.stored_settings import complete
        from mirror_pump.ops.verify.requested_repairs import verify_and_repair
        from mirror_pump.ops.verify.verification import verify as compare

        settings = complete(settings)
        with verify_progress() as show:
            if repair:
                report = verify_and_repair(settings, tables or (), observe=show, say=remark, replay_feeds=feeds)
            else:
                report = compare(settings, tables or (), observe=show, replay_feeds=feeds)
        result: dict[str, Any] = report.to_json()
        if as_json:
            write_json(result)
        else:
            _show(report, result)
        return 0 if report.equal else 1


def _show(report: VerifyReport, result: dict[str, Any]) -> None:
    """Prints a report. `result`: as JSON."""
    for table in result["tables"]:
        if table["problem"] is not None and table["frontier"] is None:
            say(f"{table['table']}: NOT COMPARED ({table['problem']})")
            continue
        rows = f"heap {count_text(table['heap_rows'])} rows, lake {count_text(table['lake_rows'])} rows"
        # A comparison that started again ends at another frontier.
        at = "" if table["frontier"] == result["frontier"] else f", at frontier {table['frontier']}"
        if table["compared"] is not None:
            at = f"; {table['compared']}"
        if table["repaired"]:
            at += f"; {count_text(table['repaired'])} rows were repaired"
        say(f"{table['table']}: {'equal' if table['equal'] else 'DIFFERENT'} ({rows}{at})")
        if table["problem"] is not None:
            say(f"  {table['problem']}")
        for difference in table["differences"]:
            say(f"  {_inline(difference)}")
    for feed in report.feeds:
        say(f"change feed {feed.lake_table}: {_outcome(feed)}")
    for moment in report.moments:
        say(f"moment {moment.name}: {'all files are there' if moment.problem is None else moment.problem}")
    say(f"compared at frontier {result['frontier']}")


def _outcome(feed: FeedReport) -> str:
    """What was found about a feed."""
    if feed.problem is not None:
        return feed.problem
    if feed.since is None or feed.until is None:
        return "all files are there" + ("" if feed.note is None else f"; not replayed: {feed.note}")
    replayed = f"{count_text(feed.changes or 0)} changes from {format_lsn(feed.since)} to {format_lsn(feed.until)}"
    if feed.different_rows:
        return f"DIFFERENT ({replayed} do not make the mirror: {count_text(feed.different_rows)} rows differ)"
    return f"equal ({replayed} make the mirror)"


def _inline(difference: Any) -> str:
    import orjson

    return orjson.dumps(difference).decode()
