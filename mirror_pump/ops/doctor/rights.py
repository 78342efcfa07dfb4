"""What the role is to the mirror, and whether it has the rights for that: admin, pump or reader (docs/roles.md).

Event triggers take a right of their own, and have a check of their own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import sql
from mirror_pump.database.catalog_cursor import mirror_on
from mirror_pump.database.quoting import identifier
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, failed, ok, warning
from mirror_pump.ops.doctor.server import server_findings
from mirror_pump.source.catalog.mirror_roles import (
    MirrorRole,
    RoleFacts,
    lacking,
    read_role,
    retained_tables_rights,
    table_owners,
)
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.change_notes import missing_triggers
from mirror_pump.source.server import ServerSubject, read_server
from mirror_pump.source.services import ManagedService

_SHOWN = 3
"""Missing privileges that a finding names; the script grants them all."""


def _rights(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        server = read_server(connection)
        facts = read_role(connection, server)
        yield from _part(connection, facts, server_findings(site, connection, server, {ServerSubject.RIGHTS}))
        if facts.part is MirrorRole.PUMP:
            yield from _retention(connection, facts)
        if facts.part in (MirrorRole.ADMIN, MirrorRole.PUMP):
            yield from _trusted(facts, table_owners(connection))
    if facts.part not in (MirrorRole.READER, MirrorRole.STRANGER) and not facts.sees_sessions:
        yield warning(
            "other roles' sessions are hidden: `status` cannot name an open transaction that keeps WAL",
            f"GRANT pg_read_all_stats TO {identifier(facts.role)}",
        )


def _part(connection: PgConnection, facts: RoleFacts, problems: Sequence[Finding]) -> Iterator[Finding]:
    """What the role is, and what it lacks."""
    role = f"role {facts.role}"
    if facts.part is MirrorRole.STRANGER:
        yield failed(
            f"{role} may not use schema modak: it is neither admin, pump nor reader of this mirror",
            f"as {facts.admin}, for a pump: {_grant_pump(connection, facts)}; for a reader: {_grant_reader(facts)}",
        )
        return
    if facts.part is MirrorRole.READER:
        if missing := lacking(connection, MirrorRole.READER):
            yield failed(f"{role} is a reader, but lacks {_some(missing)}", _grant_reader(facts))
        else:
            yield ok(f"{role} is a reader: `sql`, `wait`, `connect`. `run` and `register` take other roles")
        return
    if facts.superuser:
        yield ok(f"{role} is a superuser, which helps `init`; the pump itself needs far fewer rights")
    elif facts.part is MirrorRole.PUMP and (missing := lacking(connection, MirrorRole.PUMP)):
        yield failed(f"{role} is a pump, but lacks {_some(missing)}", _grant_pump(connection, facts))
    elif not problems:
        yield ok(f"{role} {_MAY[facts.part]}")
    yield from problems


_MAY = {
    MirrorRole.NOBODY_YET: "may stream changes and create what the mirror needs: `init` makes it the admin",
    MirrorRole.ADMIN: "is the admin, who owns schema modak: `init`, `register`, `unregister`, `reader`",
    MirrorRole.PUMP: "is a pump, and owns nothing of the mirror: `run`, `maintain`, `verify`, `status`, `retain`",
}


def _some(missing: Sequence[str]) -> str:
    more = len(missing) - _SHOWN
    return ", ".join(missing[:_SHOWN]) + (f" and {more} more rights" if more > 0 else "")


def _grant_pump(connection: PgConnection, facts: RoleFacts) -> str:
    """A command that grants what a pump needs in the schema of the connection's mirror."""
    scripts = Path(sql.__file__).parent
    whole = shlex.quote(str(scripts / "roles.sql"))
    if (mirror := mirror_on(connection)) is not None:
        script, pump = shlex.quote(str(scripts / "roles" / "pump.sql")), shlex.quote(f"pump={facts.role}")
        return f"sed -E 's/\\<modak\\>/modak_{mirror}/g' {script} | psql -v {pump} -f - \"$ADMIN_DSN\""
    names = " ".join(
        f"-v {shlex.quote(f'{name}={role}')}" for name, role in (("admin", facts.admin), ("pump", facts.role))
    )
    return f'psql {names} -f {whole} "$ADMIN_DSN"'


def _grant_reader(facts: RoleFacts) -> str:
    return f'mirror-pump reader {shlex.quote(facts.role)} --dsn "$ADMIN_DSN"'


def _retention(connection: PgConnection, facts: RoleFacts) -> Iterator[Finding]:
    """What keeps a pump from dropping partitions, and from creating them."""
    for table in retained_tables_rights(connection):
        if not table.owned:
            yield failed(
                f"partitions of {table.table_name} cannot leave the heap: that takes the rights of their owner,"
                f" {table.owner}",
                f"GRANT {identifier(table.owner)} TO {identifier(facts.role)}",
                table.table_name,
            )
        elif not table.creates:
            yield warning(
                f"partitions of {table.table_name} cannot be created ahead: their owner, {table.owner}, may create"
                f" nothing in schema {table.schema_name}",
                f"GRANT CREATE ON SCHEMA {identifier(table.schema_name)} TO {identifier(table.owner)}",
                table.table_name,
            )


def _trusted(facts: RoleFacts, owners: Sequence[str]) -> Iterator[Finding]:
    """Whom the role has to trust: what owners of tables put into them runs with its rights when it reads them."""
    others = [owner for owner in owners if owner != facts.role]
    if not others:
        return
    named = ", ".join(others)
    where = "where it reads their tables, as `run`, `verify`, and `register` without a pump do"
    if facts.superuser:
        yield warning(
            f"owners of mirrored tables ({named}) can run code as a superuser by role {facts.role}, {where}: PostgreSQL"
            " evaluates functions of a table's indexes and types for each role that reads it",
            "use the roles of docs/roles.md, none of which is a superuser",
        )
    else:
        yield ok(
            f"owners of mirrored tables ({named}) can run code with the rights of role {facts.role}, {where}"
            " (SECURITY.md): those who must not trust each other need a mirror of their own"
        )


RIGHTS = DoctorCheck("rights", _rights, needs=("database",))

_LOST = (
    "a schema change is found within seconds instead of at its place in the stream; tables are copied again after more"
    " changes, such as a column added during writes, new partitions and VACUUM FULL; and until a change without row"
    " changes is found, the frontier promises more than the lake has"
)
_LOST_WITH_RETENTION = "; tables with heap retention fail where they would have to be copied again"


def _event_triggers(site: Site) -> Iterator[Finding]:
    """Whether schema changes are reported by event triggers, whether they could be, and what is lost without them."""
    with site.connection() as connection:
        missing = missing_triggers(connection)
        server = read_server(connection)
        lost = _LOST + (_LOST_WITH_RETENTION if site.mirror and retained_tables_rights(connection) else "")
    if not missing:
        yield ok("all event triggers are there: schema changes are exact from the first moment")
    elif server.superuser:
        then = "mirror-pump init" if site.mirror is not None else ""
        message = "this role may create event triggers, which `mirror-pump init` does"
        yield warning(f"{message}; without them {lost}", then) if then else ok(message)
    else:
        yield warning(
            f"there are no event triggers, and role {server.role} may not create them: {lost}",
            f'mirror-pump init --dsn "$MASTER_DSN", once, as {_creator(server.service)}; what else to expect is in'
            " docs/roles.md#event-triggers",
        )


def _creator(service: ManagedService | None) -> str:
    """Who may create event triggers here."""
    if service is None:
        return "a superuser"
    return f"{service.creator}, if {service.name} lets it create event triggers"


EVENT_TRIGGERS = DoctorCheck("event triggers", _event_triggers, needs=("database",))
