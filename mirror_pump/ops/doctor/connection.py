"""Whether the database can be reached."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.config import ENV_PREFIX
from mirror_pump.errors import MirrorPumpError
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, failed, failure, ok
from mirror_pump.source.connect import describe_dsn


def _run(site: Site) -> Iterator[Finding]:
    if not site.settings.dsn:
        site.has_no_database()
        remedy = f"export {ENV_PREFIX}DSN='postgresql://USER@HOST/DATABASE' PGPASSWORD='...'"
        yield failed("no database was given", remedy)
        return
    try:
        with site.connection() as connection:
            user = connection.info.user
    except MirrorPumpError as error:
        site.has_no_database()
        yield failure(error)
        return
    yield ok(f"{describe_dsn(site.settings.dsn)} answers, as role {user}")


DATABASE = DoctorCheck("database", _run)
