"""`mirror-pump register --alter`: another layout, or a change feed, for tables that are mirrored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirror_pump.cli.terminal.output import count_text, each_table, report_error, say, write_json
from mirror_pump.cli.terminal.progress import copy_progress
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.register.feed_registration import FeedChange, FeedOptions
    from mirror_pump.ops.register.lake_partitions import LayoutOptions
    from mirror_pump.ops.resync.layout_change import LayoutChange

_CONSEQUENCES = {
    "sort": "; new files are sorted like that, others as maintenance rewrites them",
    "copy": "; copied again, and readers keep what they have until that is complete",
    "later": " from the next copy on: mirror-pump resume begins it",
}
"""By LayoutAction."""


def alter_tables(
    settings: Settings, names: Sequence[str], wish: LayoutOptions, *, wait: bool, dry_run: bool, as_json: bool
) -> int:
    """Changes the layout of each table. Returns the exit code: 1 if one cannot have it, or cannot be copied."""
    from mirror_pump.ops.resync.layout_change import alter_layout

    changes: list[LayoutChange] = []

    def alter(name: str) -> None:
        with copy_progress() as show:
            change = alter_layout(settings, name, wish, wait=wait, dry_run=dry_run, on_progress=show)
        changes.append(change)
        if not as_json:
            say(f"{change.table}: {layout_change_text(change, dry_run=dry_run)}")
            if change.error is not None:
                report_error(change.error, "not copied", change.table)

    refused = each_table(names, alter, "not altered")
    if as_json:
        write_json([change.to_json() for change in changes])
    return refused or int(any(change.error is not None for change in changes))


def alter_feeds(settings: Settings, names: Sequence[str], wish: FeedOptions | None) -> int:
    """Gives each table a change feed, or without a wish ends it. Returns the exit code: 1 if a table is refused."""
    from mirror_pump.ops.register.feed_registration import alter_feed

    def alter(name: str) -> None:
        change = alter_feed(settings, name, wish)
        say(f"{change.table}: {'' if change.changed else 'nothing to change: '}{feed_text(change)}")

    return each_table(names, alter, "not altered")


def feed_text(change: FeedChange) -> str:
    """For people: the change feed that a table has now."""
    if change.feed is None:
        return "no change feed; the files of a former one stay (mirror-pump unregister --list)"
    from mirror_pump.source.relations.tier_keys import duration_text

    keep = "for ever" if change.feed.keep is None else f"for {duration_text(change.feed.keep)}"
    return f"its changes are in {change.feed.lake_name}, and stay {keep}"


def layout_change_text(change: LayoutChange, *, dry_run: bool = False) -> str:
    """For people: what a change of layout leads to."""
    partitions = f"partitioned by {change.partition_by}" if change.partition_by else "not partitioned"
    layout = f"{partitions}, {f'sorted by {change.sort_by}' if change.sort_by else 'not sorted'}"
    action = change.action.value
    if action == "nothing":
        return f"nothing to change: {layout}"
    if action == "copy" and change.state == "live" and not dry_run:
        return f"{layout}; copied again, {count_text(change.rows)} rows"
    return f"{'would be ' if dry_run else ''}{layout}{_CONSEQUENCES[action]}"
