"""Whether the database has a mirror, of this program's version."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, ok
from mirror_pump.ops.setup.stored_settings import complete_from
from mirror_pump.source.catalog.catalog_schema import installed_version


def _run(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        if installed_version(connection) is None:
            # Not a failure: before `init`, this is how it is.
            message = "there is no mirror in this database yet: its catalog, publication and tables are not looked at"
            yield Finding(Outcome.SKIPPED, message, "mirror-pump init --warehouse URI")
            return
        mirror = complete_from(connection, site.settings)
    if site.streams is False:
        yield ok(f"the mirror {mirror.slot} has no stream, for tiered tables only, and warehouse {mirror.warehouse}")
    else:
        yield ok(f"the mirror has slot {mirror.slot}, publication {mirror.publication}, warehouse {mirror.warehouse}")


CATALOG = DoctorCheck("catalog", _run, needs=("database",))
