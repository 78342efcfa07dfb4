"""A standalone Spark cluster on this machine: a master and workers, each a process with directories of its own.

Workers have as little as a node of a cluster: Spark, Java, and a Python without any of our packages.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark

from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.postgres import free_port

_SPARK_HOME = Path(pyspark.__file__).parent
_STARTED = 120.0
"""Seconds in which a process has to be there."""


@dataclass(frozen=True)
class SparkWorker:
    """A node: the worker, and all that it starts."""

    process: subprocess.Popen[bytes]
    directory: Path
    """Its log, its work directory with those of the executors, and its scratch files."""

    @property
    def processes(self) -> list[psutil.Process]:
        """The worker, its executors and their Python processes, which have process groups of their own."""
        return [process for process in psutil.process_iter() if session_of(process.pid) == self.process.pid]

    def kill(self) -> None:
        """All processes end as if the machine had lost its power."""
        # What one of them starts meanwhile is found in the next round.
        while alive := [process for process in self.processes if process.pid != self.process.pid or self._alive]:
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
            psutil.wait_procs(alive, 1)

    @property
    def _alive(self) -> bool:
        return self.process.poll() is None


def session_of(pid: int) -> int | None:
    """The session of a process, which is the worker that it belongs to; None if it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


class SparkCluster:
    """The cluster; see spark_cluster()."""

    def __init__(self, directory: Path, cores: int, java_options: str) -> None:
        self._directory = directory
        self._cores = cores
        self._java_options = java_options
        self._port, self._web = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[SparkWorker] = []
        self.python = directory / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        """The Python of the nodes."""
        self.python.parent.mkdir(parents=True)
        self.python.symlink_to(Path(sys._base_executable))  # type: ignore[attr-defined]
        # An archive of classes is for one class path, which this directory is part of. It need not be there.
        self._conf = os.environ.get("SPARK_CONF_DIR", str(directory / "conf"))

    @property
    def master(self) -> str:
        """The URL for `--master`."""
        return f"spark://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts the master and waits for it."""
        self._run(
            "master", "master.Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._web)
        )
        await_true(self._answers, _STARTED, f"the master answers, see {self._directory}")

    def start_worker(self) -> SparkWorker:
        """Starts one more worker, without waiting for it."""
        name = f"worker-{len(self.workers)}"
        process = self._run(
            name, "worker.Worker", "--cores", str(self._cores), "--memory", "2g", "--webui-port", "0",
            "--work-dir", str(self._directory / name / "work"), self.master,
        )  # fmt: skip
        worker = SparkWorker(process, self._directory / name)
        self.workers.append(worker)
        return worker

    def keep(self, count: int) -> None:
        """Starts workers until so many live, and waits for them."""
        alive = sum(worker.process.poll() is None for worker in self.workers)
        for _ in range(count - alive):
            self.start_worker()
        self.await_workers(max(count, alive))

    def log(self) -> str:
        """What the master has logged."""
        return (self._directory / "master" / "log").read_text()

    def state(self) -> dict[str, Any]:
        """What the master's page says, as JSON: `aliveworkers`, `activeapps` and so on."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=60) as answer:
            state: dict[str, Any] = json.load(answer)
        return state

    def pages(self) -> dict[str, str]:
        """The web pages of the master and of its living workers, by their addresses."""
        state = self.state()
        master = f"http://127.0.0.1:{self._web}"
        applications = (*state["activeapps"], *state["completedapps"])
        addresses = [f"{master}/", f"{master}/json/"]
        addresses += [f"{master}/app/?appId={application['id']}" for application in applications]
        for worker in state["workers"]:
            if worker["state"] == "ALIVE":
                addresses += [f"{worker['webuiaddress']}/", f"{worker['webuiaddress']}/json/"]
        shown = {}
        for address in addresses:
            with urllib.request.urlopen(address, timeout=30) as answer:
                shown[address] = answer.read().decode()
        return shown

    def await_workers(self, count: int) -> None:
        """Returns once the master knows so many workers."""
        await_true(lambda: self.state()["aliveworkers"] == count, _STARTED, f"{count} workers, see {self._directory}")

    def environment(self, **conf: str) -> dict[str, str]:
        """Variables for a driver on this cluster. `conf`: Spark's settings, with `_` for `.`."""
        *given, shell = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        chosen = {
            "spark.executor.memory": "512m",
            "spark.executor.defaultJavaOptions": self._java_options,
            **{key.replace("_", "."): value for key, value in conf.items()},
        }
        added = [word for key, value in chosen.items() for word in ("--conf", f"{key}={value}")]
        return {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": shlex.join([*given, *added, shell]),
            "MIRROR_PUMP_MASTER": self.master,
        }

    def close(self) -> None:
        """Ends all processes."""
        for worker in self.workers:
            worker.kill()
        for process in self._processes:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        with suppress(OSError):
            return bool(self.state())
        return False

    def _run(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        directory = self._directory / name
        directory.mkdir()
        java = find_java_home()
        command: Sequence[str] = (
            str(java / "bin" / "java"), "-Xmx128m", *shlex.split(self._java_options),
            "-cp", f"{self._conf}:{_SPARK_HOME}/jars/*",
            "-Dspark.master.rest.enabled=false", f"org.apache.spark.deploy.{main}", *arguments,
        )  # fmt: skip
        # Nothing of this process's environment: a node has no settings of ours, and no credentials.
        environment: Mapping[str, str] = {
            "PATH": f"{self.python.parent}:/usr/bin:/bin",
            "HOME": str(directory),
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(_SPARK_HOME),
            # Set by Spark's own scripts, which take a second each.
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_CONF_DIR": self._conf,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
        }
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


@contextmanager
def spark_cluster(directory: Path, workers: int, cores: int = 2, java_options: str = "") -> Iterator[SparkCluster]:
    """A cluster with so many workers, each of which offers `cores`, for the time of the block. `java_options`: of all
    its JVMs."""
    cluster = SparkCluster(directory, cores, java_options)
    try:
        cluster.start()
        for _ in range(workers):
            cluster.start_worker()
        cluster.await_workers(workers)
        yield cluster
    finally:
        cluster.close()
