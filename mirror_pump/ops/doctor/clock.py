"""The difference between the server's clock and this machine's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, failed, ok, warning
from mirror_pump.source.server import server_time

_WORTH_KNOWING = 5.0
"""Seconds. `status` shows ages of pending deletes by the pump's clock."""
_TOO_MUCH = 900.0
"""Seconds. S3 refuses requests that are signed with a clock that is off by more (RequestTimeTooSkewed)."""
_REMEDY = "timedatectl set-ntp true on both machines, or start chronyd; `timedatectl status` shows whether it works"


def _run(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        sent = time.time()
        there = server_time(connection)
        received = time.time()
    yield difference_finding(
        (there - datetime.fromtimestamp((sent + received) / 2, UTC)).total_seconds(), (received - sent) / 2
    )


def difference_finding(seconds: float, uncertainty: float) -> Finding:
    """The finding for a server's clock that is ahead by `seconds`, give or take `uncertainty` seconds."""
    off = max(0.0, abs(seconds) - uncertainty)
    way = "ahead of" if seconds > 0 else "behind"
    message = f"the server's clock is {abs(seconds):.1f} s {way} this machine's"
    if off > _TOO_MUCH:
        return failed(f"{message}: S3 refuses requests from a clock that is off by 15 minutes", _REMEDY)
    if off > _WORTH_KNOWING:
        return warning(f"{message}: ages that `status` shows are wrong by that much", _REMEDY)
    return ok(message)


CLOCK = DoctorCheck("clock", _run, needs=("database",))
