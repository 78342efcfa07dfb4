"""The mirror in the database: its catalog, its publication, and each registered table."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.errors import SourceError, TableError
from mirror_pump.model import MirroredTable, TableMode, TableState
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, failed, failure, ok, skipped
from mirror_pump.ops.setup.stored_settings import complete_from
from mirror_pump.source.catalog.catalog_schema import installed_version
from mirror_pump.source.catalog.lost_rows import read_lost_rows
from mirror_pump.source.catalog.tables import load_tables
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.column_choices import still_chosen
from mirror_pump.source.relations.refusal import refuse_fixed_rows
from mirror_pump.source.relations.relations import describe, refuse
from mirror_pump.source.stream.publication import how_to_restore, not_whole
from mirror_pump.source.stream.slot import check_publication


def _catalog(site: Site) -> Iterator[Finding]:
    """Whether the database has a mirror, of this program's version."""
    named = "mirror" if site.settings.mirror is None else f"mirror {site.settings.mirror}"
    with site.connection() as connection:
        if installed_version(connection) is None:
            # Not a failure: before `init`, this is how it is.
            message = f"there is no {named} in this database yet: its catalog, publication and tables are not looked at"
            yield Finding(Outcome.SKIPPED, message, "mirror-pump init --warehouse URI")
            return
        mirror = complete_from(connection, site.settings)
        for row in read_lost_rows(connection):
            yield failed(row.message, row.remedy, row.table_name)
    if site.streams is False:
        yield ok(
            f"the mirror {mirror.mirror or mirror.slot} has no stream, for tiered tables only, and warehouse"
            f" {mirror.warehouse}"
        )
    else:
        yield ok(f"the {named} has slot {mirror.slot}, publication {mirror.publication}, warehouse {mirror.warehouse}")


CATALOG = DoctorCheck("catalog", _catalog, needs=("database",))


def _publication(site: Site) -> Iterator[Finding]:
    """Whether the publication is there, publishes what the mirror needs, and has all of every table."""
    mirror = site.require_mirror()
    if site.streams is False:
        yield ok("tiered tables need no publication, and the mirror has none")
        return
    with site.connection() as connection:
        try:
            check_publication(connection, mirror.publication)
        except SourceError as error:
            yield failure(error)
            return
        gaps = not_whole(connection, mirror.slot)
        tables = [
            table
            for table in load_tables(connection, mirror.slot)
            if table.mode is TableMode.MIRRORED and not table.state.has_ended and table.paused_since is None
        ]
    incomplete = [table for table in tables if table.table_id in gaps]
    for table in incomplete:
        yield failed(
            f"publication {mirror.publication} does not have all of {table.name}",
            how_to_restore(mirror.publication, table),
            str(table.name),
        )
    if not incomplete:
        yield ok(f"publication {mirror.publication} has all of {len(tables)} tables")


PUBLICATION = DoctorCheck("publication", _publication, needs=("catalog",))

_TABLES_DEADLINE = 120.0
"""Seconds. Describing a table takes some milliseconds, and there may be 10,000."""


def _tables(site: Site) -> Iterator[Finding]:
    """Whether each table could still be registered."""
    if site.is_reader:
        yield skipped("a reader's role sees little of the tables: run it as the admin or the pump for these")
        return
    mirror = site.require_mirror()
    sound = 0
    with site.connection() as connection:
        tables = load_tables(connection, mirror.slot)
        for table in tables:
            if table.state is TableState.DROPPED:
                continue
            finding = _examined(connection, table, mirror.publication)
            if finding is None:
                sound += 1
            else:
                yield finding
    if not tables:
        yield ok("no table is registered yet")
    elif sound:
        yield ok(f"{sound} tables can be mirrored: replica identity, row security, ownership and names are right")


def _examined(connection: PgConnection, table: MirroredTable, publication: str) -> Finding | None:
    """The finding about one table; None if all is well."""
    name = str(table.name)
    if table.state is TableState.FAILED:
        return failed(
            "the table has failed; `mirror-pump status` says why",
            f"mend the cause, then: mirror-pump unregister {table.name.shell}; mirror-pump register {table.name.shell}",
            name,
        )
    try:
        description = still_chosen(describe(connection, table.table_id, publication, table.mode), table)
        refuse(description, table.mode, append_only=table.append_only)
        refuse_fixed_rows(description)
    except TableError as error:
        return failure(error, name)
    return None


TABLES = DoctorCheck("tables", _tables, needs=("catalog",), deadline=_TABLES_DEADLINE)
