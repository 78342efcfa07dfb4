"""Whether schema changes are reported by event triggers, whether they could be, and what is lost without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, ok, warning
from mirror_pump.source.catalog.mirror_roles import master_roles, retained_tables_rights
from mirror_pump.source.relations.change_notes import missing_triggers
from mirror_pump.source.server import read_server

_LOST = (
    "a schema change is found within seconds instead of at its place in the stream; tables are copied again after more"
    " changes, such as a column added during writes, new partitions and VACUUM FULL; and until a change without row"
    " changes is found, the frontier promises more than the lake has"
)
_LOST_WITH_RETENTION = "; tables with heap retention fail where they would have to be copied again"


def _run(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        missing = missing_triggers(connection)
        server = read_server(connection)
        masters = master_roles(connection)
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
            f'mirror-pump init --dsn "$MASTER_DSN", once, as {_creator(masters)}; what else to expect is in'
            " docs/roles.md#event-triggers",
        )


def _creator(masters: Sequence[str]) -> str:
    """Who may create event triggers here."""
    if not masters:
        return "a superuser"
    return f"a member of {masters[0]}, if this service lets it create event triggers"


EVENT_TRIGGERS = DoctorCheck("event triggers", _run, needs=("database",))
