"""Each registered table: whether it could still be registered (replica identity, row security, ownership, names)."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.errors import TableError
from mirror_pump.model import MirroredTable, TableState
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, failed, failure, ok, skipped
from mirror_pump.source.catalog.tables import load_tables
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.column_choices import still_chosen
from mirror_pump.source.relations.relations import describe, refuse

_DEADLINE = 120.0
"""Seconds. Describing a table takes some milliseconds, and there may be 10,000."""


def _run(site: Site) -> Iterator[Finding]:
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
            found = _examined(connection, table, mirror.publication)
            if found is None:
                sound += 1
            else:
                yield found
    if not tables:
        yield ok("no table is registered yet")
    elif sound:
        yield ok(f"{sound} tables can be mirrored: replica identity, row security, ownership and names are right")


def _examined(connection: PgConnection, table: MirroredTable, publication: str) -> Finding | None:
    """The finding about one table; None if all is well."""
    name = str(table.name)
    if table.state is TableState.FAILED:
        name_for_shell = name if "'" in name else f"'{name}'"
        return failed(
            "the table has failed; `mirror-pump status` says why",
            f"mend the cause, then: mirror-pump unregister {name_for_shell}; mirror-pump register {name_for_shell}",
            name,
        )
    try:
        refuse(still_chosen(describe(connection, table.table_id, publication, table.mode), table), table.mode)
    except TableError as error:
        return failure(error, name)
    return None


TABLES = DoctorCheck("tables", _run, needs=("catalog",), deadline=_DEADLINE)
