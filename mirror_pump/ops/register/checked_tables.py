"""Which tables can be registered as requested: checks them, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

from mirror_pump.engine.lake_storage import lake_storage, refresh_profiles
from mirror_pump.errors import TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import FeedMode, LakePartitioning, MirroredTable, TableId, TableMode, TableName, TableState
from mirror_pump.ops.register.feed_registration import refuse_feed, refuse_name_of_feed
from mirror_pump.ops.register.format_versions import refuse_variants
from mirror_pump.ops.register.lake_partitions import partitioning_by
from mirror_pump.ops.register.new_lake_table import refuse_left_over, refuse_missing_warehouse, warehouse_of
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.catalog_slot import catalog_slot, default_format_version, no_stream
from mirror_pump.source.catalog.lost_rows import is_begun, lost_registration
from mirror_pump.source.catalog.other_mirrors import refuse_second_retention
from mirror_pump.source.catalog.profiles import find_profile
from mirror_pump.source.catalog.tables import load_table, registered_as, was_dropped
from mirror_pump.source.connect import PgConnection, session_time_zone
from mirror_pump.source.relations.column_choices import chosen
from mirror_pump.source.relations.published_rules import published_choices
from mirror_pump.source.relations.refusal import refuse_fixed_rows
from mirror_pump.source.relations.relations import RelationDescription, describe, refuse
from mirror_pump.source.relations.row_filters import read_filter
from mirror_pump.source.retention.retention_plan import RetentionPlan, plan_retention, sheds


class RegistrationTarget:
    """Where the tables of one call go, read once for all of them."""

    def __init__(self, connection: PgConnection, settings: Settings, profile: str | None) -> None:
        """`profile`: as in `TableOptions`."""
        self._connection = connection
        self._settings = settings
        self._profile = profile

    @cached_property
    def profile(self) -> StorageProfile:
        """Raises SourceError if there is none of this name. `require_unchanged` looks at it again."""
        return find_profile(self._connection, self._profile)

    @cached_property
    def storage(self) -> StorageOptions:
        storage = lake_storage(self._settings)
        refresh_profiles(storage, self._connection)
        return storage

    @cached_property
    def format_version(self) -> int:
        """Of tables for which none is chosen."""
        return default_format_version(self._connection, self._settings.slot)

    @cached_property
    def streams(self) -> bool:
        """Whether the mirror has a stream."""
        return catalog_slot(self._connection, self._settings.slot).streams


@dataclass(frozen=True)
class CheckedTable:
    """A table that can be registered as requested."""

    description: RelationDescription
    wish: TableOptions
    """With the choices that the publication makes."""
    row_filter: str
    """As the server prints it."""
    plan: RetentionPlan | None
    partitioning: LakePartitioning | None
    format_version: int


class NameTaken(TableError):
    """The name means another table by now, or its table has been registered meanwhile."""

    def __init__(self, name: TableName) -> None:
        super().__init__(f"another command registers or renames {name}", "Register it again.")


@dataclass(frozen=True)
class NameHolders:
    """What has the name of a table that is to be registered, or had its OID."""

    retired: MirroredTable | None
    """The registration that ends when the table is registered: of a dropped table with its OID or its name."""
    holder: MirroredTable | None
    """The registration that has the name: the retired one, or that of a table that was renamed and gives it up."""


def require_unregistered(connection: PgConnection, table_id: TableId, name: TableName) -> MirroredTable | None:
    """Raise NameTaken if the table itself is registered. Return the registration of a dropped table with its OID."""
    table = load_table(connection, table_id)
    if table is not None and table.state is not TableState.DROPPED:
        raise NameTaken(name)
    return table


def name_holders(connection: PgConnection, table_id: TableId, name: TableName) -> NameHolders:
    """Raises NameTaken if the table itself is registered."""
    dropped_table = require_unregistered(connection, table_id, name)
    holder = registered_as(connection, name)
    retired = dropped_table or holder
    return NameHolders(retired if retired is not None and was_dropped(connection, retired) else None, holder)


def check_table(
    connection: PgConnection,
    settings: Settings,
    lake: RegistrationTarget,
    table_id: TableId,
    table_name: TableName,
    wish: TableOptions,
) -> CheckedTable:
    """Check a table that is not registered. Raise MirrorPumpError if it would be refused. Change nothing, but that a
    function for looking at rows may be made (`plan_retention`)."""
    _refuse_lost(connection, str(table_name), table_id)
    refuse_name_of_feed(connection, table_name)
    if wish.mode is TableMode.MIRRORED and not lake.streams:
        raise no_stream(connection, f"{table_name} cannot be mirrored")
    holders = name_holders(connection, table_id, table_name)
    if wish.mode is TableMode.MIRRORED:
        choices = published_choices(connection, settings.publication, table_id, wish.choices)
        wish = replace(wish, choices=choices)
    wish.refuse_conflicts(table_name)
    if holders.retired is not None:
        refuse_to_retire(connection, holders.retired)
    described = describe(connection, table_id, settings.publication, wish.mode)
    description = chosen(connection, described, wish.choices)
    refuse(description, wish.mode, append_only=wish.choices.append_only)
    refuse_fixed_rows(description)
    if wish.feed is not None:
        refuse_feed(connection, description, wish.feed)
        if wish.feed.mode is FeedMode.ROWS:
            # `_prepare` sees to it.
            described = replace(described, identity=replace(described.identity, setting="f"))
            description = chosen(connection, described, wish.choices)
    version = wish.format_version or lake.format_version
    refuse_variants(description, version, sheds=wish.retention is not None)
    row_filter = read_filter(connection, settings.publication, description, wish.choices.where)
    plan = None
    if wish.retention is not None:
        refuse_second_retention(connection, description.name, table_id)
        time_zone = partial(session_time_zone, settings.require_dsn())
        plan = plan_retention(connection, description, wish.retention, time_zone)
    profile, storage = lake.profile, lake.storage
    refuse_missing_warehouse(connection, warehouse_of(profile), storage)
    if holders.holder is None:
        try:
            refuse_left_over(connection, description.name, storage)
        except TableError:
            # Another command may have registered it a moment ago.
            if name_holders(connection, table_id, table_name).holder is None:
                raise
    partitioning = partitioning_by(
        description.name, description.columns, wish.choices.partition_by, wish.choices.sort_by
    )
    if plan is not None:
        partitioning = plan.partitioning
    return CheckedTable(description, wish, row_filter, plan, partitioning, version)


def _refuse_lost(connection: PgConnection, name: str, table_id: TableId) -> None:
    """Raise TableError if the table has a registration of which rows of the catalog are lost."""
    lost = lost_registration(connection, table_id) if is_begun(connection, table_id) else None
    if lost is not None:
        raise TableError(f"{name} has been registered, and {lost.message}", lost.remedy)


def refuse_to_retire(connection: PgConnection, retired_table: MirroredTable) -> None:
    """Raise TableError if the registration of a dropped table must not end when another of its name is registered."""
    if sheds(connection, retired_table) or (retired_table.tier is not None and retired_table.tier.moved):
        raise TableError(
            f"{retired_table.name} was dropped, and its lake table holds rows that its heap had shed before: nothing"
            " else has them",
            f"Say what is to become of them: `mirror-pump unregister {retired_table.name.shell} --keep-lake`, or, if"
            f" they are not needed, `mirror-pump unregister {retired_table.name.shell} --drop-lake --yes`.",
        )
