"""The cores that this process may use: fewer than the machine has in a container, or with a CPU affinity."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def available_cores(mounted: Path = _CONTROL_GROUPS, membership: Path = _OWN_GROUPS) -> int:
    """The cores of the process's CPU affinity, but no more than its control groups allow, rounded up; at least 1.

    `mounted` is where control groups are mounted, `membership` lists the groups that the process is in (cgroups(7)).
    """
    cores = len(os.sched_getaffinity(0))
    for quota in _quotas(mounted, membership):
        cores = min(cores, math.ceil(quota))
    return max(1, cores)


def _quotas(mounted: Path, membership: Path) -> Iterator[float]:
    """The limits, in cores, of the process's groups and of those around them: each of them applies."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number == "0":
            root, read = mounted, _quota_v2
        elif "cpu" in controllers.split(","):
            root, read = mounted / controllers, _quota_v1
        else:
            continue
        path = PurePosixPath(group.lstrip("/"))
        # In a container the path may be that of the host, which is not there. Its own group is the root then.
        for directory in (root / path, *(root / parent for parent in path.parents)):
            with suppress(OSError, ValueError, ZeroDivisionError):
                quota = read(directory)
                if quota is not None:
                    yield quota


def _quota_v2(directory: Path) -> float | None:
    quota, period = (directory / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(directory: Path) -> float | None:
    quota = int((directory / "cpu.cfs_quota_us").read_text())
    return None if quota <= 0 else quota / int((directory / "cpu.cfs_period_us").read_text())
