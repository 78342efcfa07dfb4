"""Whether other catalogs that show the tables answer, take the credentials, and are not behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import MirrorPumpError
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, ok, skipped, warning
from mirror_pump.ops.status.alerts import follower_alerts
from mirror_pump.source.catalog.followers import read_followers

_PATIENCE = 10.0
"""Seconds for a catalog to answer."""
_DEADLINE = 60.0


def _run(site: Site) -> Iterator[Finding]:
    if site.is_reader:
        yield skipped("their catalogs are the pump's and the admin's matter")
        return
    mirror = site.require_mirror()
    with site.connection() as connection:
        followers = read_followers(connection, mirror.slot)
    if not followers:
        yield ok("no other catalog follows")
        return
    # pyiceberg's catalogs take time and memory.
    from mirror_pump.ops.follow.follower_catalog import FollowerCatalog

    for follower in followers:
        # The mirror works without it, so whatever is wrong is a warning.
        try:
            with closing(FollowerCatalog(follower, lake_storage(mirror), _PATIENCE)):
                alerts = follower_alerts(follower)
        except MirrorPumpError as error:
            yield warning(str(error), error.remedy)
            continue
        yield from (warning(alert.message, alert.remedy) for alert in alerts)
        if not alerts:
            yield ok(f"{follower.text}; it answers")


FOLLOWERS = DoctorCheck("followers", _run, needs=("catalog",), deadline=_DEADLINE)
