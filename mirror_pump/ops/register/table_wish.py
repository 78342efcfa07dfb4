"""What is chosen for the tables of one call of `register`, and whether a registered table is as it was chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import MirroredTable, SnapshotPlan, TableMode, TableState
from mirror_pump.ops.register.feed_registration import FeedWish
from mirror_pump.ops.register.format_versions import refuse_downgrade
from mirror_pump.settings.config import Settings
from mirror_pump.settings.policy import FORMAT_VERSION_KEY
from mirror_pump.source.catalog.pauses import paused_text
from mirror_pump.source.catalog.profiles import profile_of
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.column_choices import (
    NO_CHOICES,
    ColumnChoices,
    describe_choices,
    same_choices,
    with_layout_of,
)
from mirror_pump.source.relations.lake_layout import is_present_layout
from mirror_pump.source.relations.relations import describe
from mirror_pump.source.relations.row_filters import read_filter
from mirror_pump.source.relations.tier_keys import NEVER, duration_text
from mirror_pump.source.retention.partitions import read_choices
from mirror_pump.source.retention.retention_plan import RetentionWish
from mirror_pump.source.stream.publication import how_to_restore, lacks_a_part


@dataclass(frozen=True)
class TableWish:
    """What the user chose for the tables of one call."""

    choices: ColumnChoices = NO_CHOICES
    retention: RetentionWish | None = None
    profile: str | None = None
    """Name of a storage profile; None: the default one."""
    snapshots: SnapshotPlan | None = None
    feed: FeedWish | None = None
    """The change feed that it gets; None: none."""
    format_version: int | None = None
    """Of the lake table. None: the mirror's default."""

    def __post_init__(self) -> None:
        """Raise UsageError for a change feed of a table whose rows change by more than the stream has."""
        if self.feed is not None and (self.retention is not None or self.snapshots is not None):
            raise UsageError(
                "--changes is for plain mirrored tables, without --heap-retention, --mode tiered and --snapshot-only",
                "leave out --changes: the rows of such tables change by more than the stream has",
            )

    @property
    def mode(self) -> TableMode:
        return TableMode.MIRRORED if self.retention is None else self.retention.mode


def refuse_difference(connection: PgConnection, settings: Settings, table: MirroredTable, wish: TableWish) -> None:
    """Raise TableError if a registered table has failed, or is not registered with just these options. A distance, a
    width and the like do not count: they may have been changed since. Nor does a pause, which says nothing about how
    the table is mirrored, nor the change feed, which can be altered."""
    refuse_otherwise(connection, settings, table, replace(wish, feed=None), in_full=True)
    stored = read_choices(connection, table.table_id)
    if wish.retention is None and table.mode is TableMode.MIRRORED and stored is not None and stored.lag != NEVER:
        raise TableError(f"{table.name} is registered with heap retention", f"to change that: {_anew(table)}")


def refuse_otherwise(
    connection: PgConnection, settings: Settings, table: MirroredTable, wish: TableWish, *, in_full: bool = False
) -> None:
    """Raise TableError if a registered table has failed or is paused, or is registered in another way. `in_full`: what
    was not chosen counts too, and a pause does not."""
    if table.state is TableState.FAILED:
        raise TableError(
            f"{table.name} is registered, but has failed",
            f"`mirror-pump status` says why. Fix that, then {_anew(table)}",
        )
    if table.paused_since is not None and not table.rests and not in_full:
        raise TableError(
            f"{table.name} is registered, and {paused_text(table.paused_since)}",
            f"mirror-pump resume {table.name.shell}",
        )
    if table.paused_since is None and lacks_a_part(connection, settings.slot, table.table_id):
        raise TableError(
            f"{table.name} is registered, but not published whole: somebody changed publication {settings.publication}",
            how_to_restore(settings.publication, table),
        )
    if (wish.choices or in_full) and not (
        same_choices(table, wish.choices) and _has_filter(connection, settings, table, wish.choices.where)
    ):
        registered_choices = describe_choices(table)
        only_layout = same_choices(table, with_layout_of(wish.choices, table))
        raise TableError(
            f"{table.name} is registered with {registered_choices or 'its columns as they are'}",
            f"`mirror-pump register {table.name.shell} --alter` with --partition-by, --no-partition-by, --sort-by or"
            " --no-sort-by changes that"
            if only_layout
            else f"to change that: {_anew(table)}: it is copied again",
        )
    if (wish.snapshots is not None or in_full) and table.snapshots != wish.snapshots:
        raise TableError(
            f"{table.name} is registered {snapshots_text(table.snapshots)}",
            f"to change that: {_anew(table)}: it is copied again",
        )
    if wish.feed is not None and (table.feed is None or table.feed.mode is not wish.feed.mode):
        registered_feed = "without a change feed" if table.feed is None else f"with --changes={table.feed.mode}"
        begin = f"mirror-pump register {table.name.shell} --alter --changes={wish.feed.mode}"
        end = f"first `mirror-pump register {table.name.shell} --alter --no-changes`, then "
        raise TableError(
            f"{table.name} is registered {registered_feed}", f"{end if table.feed is not None else ''}`{begin}`"
        )
    if table.mode is not wish.mode:
        raise TableError(f"{table.name} is registered as a {table.mode} table", f"to change that: {_anew(table)}")
    if wish.retention is not None and read_choices(connection, table.table_id) is None:
        raise TableError(f"{table.name} is registered without heap retention", f"to change that: {_anew(table)}")
    _refuse_other_layout(table, wish)
    if wish.profile is not None and wish.profile != (current_profile := profile_of(connection, table.table_id)):
        raise TableError(
            f"{table.name} is registered with storage profile {current_profile}",
            f"to move it: {_anew(table)}: it is copied again",
        )


def _has_filter(connection: PgConnection, settings: Settings, table: MirroredTable, where: str) -> bool:
    """Whether a registered table has this row filter."""
    if not where or not table.row_filter:
        return where == table.row_filter
    description = describe(connection, table.table_id, settings.publication, table.mode)
    return read_filter(connection, settings.publication, description, where, sheds=False) == table.row_filter


def _refuse_other_layout(table: MirroredTable, wish: TableWish) -> None:
    """Raise TableError if the lake table of a registered table is not partitioned as requested, or has another format
    version."""
    if wish.format_version is not None and table.format_version != wish.format_version:
        refuse_downgrade(table, wish.format_version)
        raise TableError(
            f"the lake table of {table.name} has format version {table.format_version}",
            f"to upgrade it: mirror-pump policy set {table.name.shell} {FORMAT_VERSION_KEY} {wish.format_version}",
        )
    lake_partition = None if wish.retention is None else wish.retention.lake_partition
    fields = () if table.partitioning is None else table.partitioning.fields
    transform = fields[0].transform if fields else None
    if lake_partition is None or is_present_layout(lake_partition, transform):
        return
    layout = f"partitioned by {transform}" if transform is not None else "not partitioned"
    raise TableError(
        f"the lake table of {table.name} is {layout}, which cannot change: its files are written that way",
        f"to change that: {_anew(table)}: what its heap holds is copied again. Rows that have left the"
        " heap stay in the former lake table (docs/retention.md#tables-that-exist)",
    )


def _anew(table: MirroredTable) -> str:
    """How a table is registered again."""
    return (
        f"`mirror-pump unregister {table.name.shell}`, then `mirror-pump register {table.name.shell}` as it should be"
    )


def snapshots_text(snapshots: SnapshotPlan | None) -> str:
    """For people: how a table is registered."""
    if snapshots is None:
        return "to be followed"
    return "for copies " + ("on request" if snapshots.every is None else f"every {duration_text(snapshots.every)}")
