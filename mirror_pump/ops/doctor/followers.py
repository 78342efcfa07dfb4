"""Whether other catalogs that show the tables answer, take the credentials, and are not behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import MirrorPumpError
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, ok, skipped, warning
from mirror_pump.ops.status.alerts import follower_alerts
from mirror_pump.source.catalog.followers import read_followers

_PATIENCE = 10.0
"""Seconds for a catalog to answer each of two calls."""
_SHORTEST = 1.0
_DEADLINE = 60.0
_MARGIN = 5.0
"""Seconds for all else."""


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

    end = time.monotonic() + _DEADLINE - _MARGIN
    for follower in followers:
        patience = min(_PATIENCE, (end - time.monotonic()) / 2)
        if patience < _SHORTEST:
            yield warning(f"follower {follower.name}: not asked, since others took too long", "mirror-pump follow list")
            continue
        # The mirror works without it, so whatever is wrong is a warning.
        try:
            with closing(FollowerCatalog(follower, lake_storage(mirror), patience)):
                alerts = follower_alerts(follower)
        except MirrorPumpError as error:
            yield warning(str(error), error.remedy)
            continue
        yield from (warning(alert.message, alert.remedy) for alert in alerts)
        if not alerts:
            yield ok(f"{follower.text}; it answers")


FOLLOWERS = DoctorCheck("followers", _run, needs=("catalog",), deadline=_DEADLINE)
