"""Memory and CPU of the pump's processes and of the server's, read from /proc every 100 ms (Linux only).

Memory is RSS: what the forked Python workers share is counted for each of them, so the sums are on the high side.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

INTERVAL = 0.1
"""Seconds between two samples."""
_LOOK_EVERY = 5
"""Samples between two searches for new processes: the pump's exist from its start."""

DRIVER, JVM, WORKERS, WALSENDER, POSTGRES = "driver", "jvm", "workers", "walsender", "postgres"
EXECUTORS, STORAGE = "executors' jvm", "storage"
PUMP_ROLES = (DRIVER, JVM, WORKERS, EXECUTORS)

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Peak:
    """Most memory at any time, in MB (10^6 bytes); `total` is the peak of the sum, not the sum of the peaks."""

    driver: float
    jvm: float
    workers: float
    total: float

    def figures(self, name: str) -> dict[str, float]:
        return {
            f"memory.{name}_driver_mb": self.driver,
            f"memory.{name}_jvm_mb": self.jvm,
            f"memory.{name}_workers_mb": self.workers,
            f"memory.{name}_total_mb": self.total,
        }

    def __str__(self) -> str:
        return f"{self.total:,.0f} MB (driver {self.driver:,.0f}, JVM {self.jvm:,.0f}, workers {self.workers:,.0f})"


@dataclass(frozen=True)
class _Sample:
    at: float
    memory: dict[str, int]
    cpu: dict[str, float]


@dataclass
class Sampler:
    """A thread that watches the tree below `pump` and the children of `postmaster`, from `start` to `stop`; also the
    trees below `nodes`, the workers of a Spark cluster, and the process `storage`."""

    pump: int
    postmaster: int
    nodes: tuple[int, ...] = ()
    storage: int | None = None
    _samples: list[_Sample] = field(default_factory=list)
    _cpu: dict[int, tuple[str, float]] = field(default_factory=dict)
    """By process: its role and the CPU seconds that it has used, kept when it ends."""

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def peak(self, begin: float = 0.0) -> Peak:
        """Over all samples since `begin` (time.monotonic(), seconds)."""
        memory = [sample.memory for sample in self._samples if sample.at >= begin]

        def highest(*roles: str) -> float:
            return round(max((sum(one.get(role, 0) for role in roles) for one in memory), default=0) / 1e6, 1)

        return Peak(highest(DRIVER), highest(JVM), highest(WORKERS), highest(*PUMP_ROLES))

    def cpu(self, begin: float, end: float) -> dict[str, float]:
        """CPU seconds by role between two times of time.monotonic(), to the nearest sample."""
        if not self._samples:
            return {}
        first = min(self._samples, key=lambda sample: abs(sample.at - begin)).cpu
        last = min(self._samples, key=lambda sample: abs(sample.at - end)).cpu
        return {role: round(seconds - first.get(role, 0.0), 2) for role, seconds in last.items()}

    def _roles(self) -> dict[int, str]:
        children = _children()
        roles = _roles(self.pump, self.postmaster, children)
        for node in self.nodes:
            roles |= _node_roles(node, children)
        return roles if self.storage is None else {**roles, self.storage: STORAGE}

    def _run(self) -> None:
        roles: dict[int, str] = {}
        number = 0
        while not self._stopping.wait(INTERVAL):
            if number % _LOOK_EVERY == 0:
                roles = self._roles()
            number += 1
            memory: dict[str, int] = {}
            for pid, role in roles.items():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
                    self._cpu[pid] = (role, _cpu_seconds(pid))
                    memory[role] = memory.get(role, 0) + resident
            cpu: dict[str, float] = {}
            for role, seconds in self._cpu.values():
                cpu[role] = cpu.get(role, 0.0) + seconds
            self._samples.append(_Sample(time.monotonic(), memory, cpu))


def parent_of(pid: int) -> int:
    """The parent's process id; OSError when the process is gone."""
    return int(_stat(pid)[1])


def _children() -> dict[int, list[int]]:
    """The process ids of each process's children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - twice as fast as Path.iterdir, and we share the cores
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                children.setdefault(parent_of(int(entry)), []).append(int(entry))
    return children


def _roles(pump: int, postmaster: int, children: Mapping[int, list[int]]) -> dict[int, str]:
    """What each process of interest is, by process id."""
    roles = {pump: DRIVER}
    todo = [(child, DRIVER) for child in children.get(pump, [])]
    while todo:
        pid, parent_role = todo.pop()
        # A shell script starts the JVM and becomes it; the JVM's children are the Python workers.
        role = WORKERS if parent_role in (JVM, WORKERS) else JVM
        roles[pid] = role
        todo += [(child, role) for child in children.get(pid, [])]
    for pid in children.get(postmaster, []):
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            roles[pid] = WALSENDER if b"walsender" in title else POSTGRES
    return roles


def _node_roles(node: int, children: Mapping[int, list[int]]) -> dict[int, str]:
    """Of a worker of Spark: executors, each a JVM, and their Python workers."""
    roles = {}
    todo = [node]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            roles[pid] = EXECUTORS if Path(f"/proc/{pid}/comm").read_text().strip() == "java" else WORKERS
        todo += children.get(pid, [])
    return roles


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may contain anything: [0] is the state, [1] the parent."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICK
