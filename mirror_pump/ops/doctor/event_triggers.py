"""Whether schema changes are reported by event triggers, whether they could be, and what is lost without them."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, ok, warning
from mirror_pump.source.relations.change_notes import missing_triggers
from mirror_pump.source.server import read_server

_LOST = (
    "a schema change is found within seconds instead of at its place in the stream; tables are copied again after more"
    " changes, such as a column added during writes, new partitions and VACUUM FULL; and until a change without row"
    " changes is found, the frontier promises more than the lake has"
)


def _run(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        missing = missing_triggers(connection)
        server = read_server(connection)
    if not missing:
        yield ok("all event triggers are there: schema changes are exact from the first moment")
    elif server.superuser:
        then = "mirror-pump init" if site.mirror is not None else ""
        message = "this role may create event triggers, which `mirror-pump init` does"
        yield warning(f"{message}; without them {_LOST}", then) if then else ok(message)
    else:
        yield warning(
            f"there are no event triggers, and role {server.role} may not create them: {_LOST}",
            "run `mirror-pump init` once with the DSN of a superuser, or of the role that your managed service lets"
            " create event triggers; docs/schema-changes.md#without-event-triggers says what else to expect",
        )


EVENT_TRIGGERS = DoctorCheck("event triggers", _run, needs=("database",))
