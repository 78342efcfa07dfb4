"""Starts the measured process, follows its steps, and makes sure that it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from benchmarks.sampling import Sampler, parent_of
from benchmarks.scene import ROOT, BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

START_SECONDS = 120.0
"""Longest wait for the pump's first step."""
_STOP_SECONDS = 120.0
"""Longest wait for its end. Long, because otherwise the measurements are lost, and the machine may be busy."""
_POLL = 0.02


class BenchmarkFailed(RuntimeError):
    """A benchmark has no result; the message says why."""


@dataclass(frozen=True)
class Taken:
    """A step that the process took."""

    at: float
    """time.monotonic(), seconds."""
    step: Step
    details: dict[str, Any]


@dataclass(frozen=True)
class Profiling:
    """Where py-spy writes its flame graphs."""

    directory: Path


@dataclass(frozen=True)
class Elsewhere:
    """What works for the process without being its child."""

    nodes: tuple[int, ...] = ()
    """Process ids of the workers of a Spark cluster."""
    storage: int | None = None
    """Process id of a server of S3."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables with which the process finds them."""


NOWHERE_ELSE = Elsewhere()


class MeasuredProcess:
    """A pump or a register in a separate process, as a context manager that ends it."""

    def __init__(
        self,
        mirror: BenchmarkMirror,
        name: str,
        action: str,
        settings: Mapping[str, object],
        *,
        until: int | None = None,
        profiling: Profiling | None = None,
        elsewhere: Elsewhere = NOWHERE_ELSE,
    ) -> None:
        self._steps_file = mirror.directory / f"{name}.steps"
        self._steps_file.unlink(missing_ok=True)
        self._log = mirror.directory / f"{name}.log"
        self._request = {
            "settings": {
                "dsn": mirror.dsn,
                "slot": mirror.name,
                "publication": mirror.name,
                **mirror.storage,
                **settings,
            },
            "steps": str(self._steps_file),
            "action": action,
            "until": until,
        }
        self._mirror = mirror
        self._name = name
        self._profiling = profiling
        self._elsewhere = elsewhere
        self._profiler: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MeasuredProcess:
        # Neither the user's own settings of the program, nor modules that every process compiles again.
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("MIRROR_PUMP_") and key != "PYTHONDONTWRITEBYTECODE"
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.pump_process"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**environment, **self._elsewhere.environment},
                start_new_session=True,
            )
        stdin: IO[bytes] | None = self._process.stdin
        assert stdin is not None
        stdin.write(orjson.dumps(self._request))
        stdin.close()
        with self._mirror.connect() as connection:
            self.sampler = Sampler(
                self._process.pid,
                parent_of(connection.info.backend_pid),
                self._elsewhere.nodes,
                self._elsewhere.storage,
            )
        self.sampler.start()
        if self._profiling is not None:
            self._profiler = _profile(self._process.pid, self._profiling.directory / f"{self._name}.svg")
        return self

    def __exit__(self, *_: object) -> None:
        self.sampler.stop()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._profiler is not None:
            self._profiler.wait(60)

    def steps(self) -> list[Taken]:
        """All steps so far."""
        if not self._steps_file.exists():
            return []
        lines = self._steps_file.read_bytes().split(b"\n")[:-1]
        return [Taken(one["at"], Step(one["step"]), one["details"]) for one in map(orjson.loads, lines)]

    def first(self, step: Step) -> Taken:
        """The first time that the step was taken; BenchmarkFailed if it was not."""
        for taken in self.steps():
            if taken.step is step:
                return taken
        raise BenchmarkFailed(f"{self._name}: no step {step}, see {self._log}{self._said()}")

    def wait_for(self, step: Step, timeout: float = START_SECONDS) -> None:
        """Returns once the step was taken."""
        self._wait(lambda: any(taken.step is step for taken in self.steps()), f"step {step}", timeout)

    def finish(self, timeout: float) -> None:
        """Waits for the process to end by itself; BenchmarkFailed if it fails or takes longer."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise BenchmarkFailed(f"{self._name} took over {timeout:.0f} s{self._said()}") from None
        if code != 0:
            raise BenchmarkFailed(f"{self._name} ended with {code}{self._said()}")

    def stop(self) -> None:
        """Sends SIGTERM, and waits for the end."""
        self._process.send_signal(signal.SIGTERM)
        self.finish(_STOP_SECONDS)

    def check(self) -> None:
        """BenchmarkFailed if the process has ended."""
        if self._process.poll() is not None:
            raise BenchmarkFailed(f"{self._name} ended by itself{self._said()}")

    def _wait(self, done: Callable[[], bool], what: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            self.check()
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{self._name}: no {what} within {timeout:.0f} s{self._said()}")
            time.sleep(_POLL)

    def _said(self) -> str:
        return f":\n{self._log.read_text(errors='replace')[-3000:]}"


def _profile(pid: int, path: Path) -> subprocess.Popen[bytes]:
    """Runs py-spy on the pump and its Python workers until they end. It costs speed, so do not use the figures of such
    a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["py-spy", "record", "--pid", str(pid), "--subprocesses", "--threads", "--rate", "100", "--nonblocking",
               "--output", str(path)]  # fmt: skip
    spy = Path(sys.executable).with_name("py-spy")
    if spy.exists():
        command[0] = str(spy)
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise BenchmarkFailed("--profile needs py-spy: pip install py-spy") from None
