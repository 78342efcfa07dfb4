"""A mirror in S3 whose pump and commands are processes with their tasks on a Spark cluster."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import orjson
import psutil
from psycopg.conninfo import conninfo_to_dict

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.held_writes import HeldWrite, HoldingS3Server
from tests.support.spark_cluster import SparkCluster, SparkWorker, session_of

SECRET = "secret-of-the-storage"
_BUCKET = "lake"


@dataclass
class ClusterMirror:
    """The mirror, its storage, and its pump once that was started."""

    cluster: SparkCluster
    mirror: Mirror
    s3: HoldingS3Server
    program: Program
    directory: Path
    dsn: str
    """Without a password."""
    password: str
    pump: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def create(
        cls,
        cluster: SparkCluster,
        database: Database,
        s3: HoldingS3Server,
        tasks: ThreadTaskRunner,
        directory: Path,
        dsn: str,
        password: str,
    ) -> Self:
        """Initialises the mirror. `dsn` has no password."""
        storage = {**s3.storage_settings, "storage_secret_key": SECRET}
        # Deletes are written by key, so that there is something to convert.
        mirror = Mirror.create(
            database, f"s3://{_BUCKET}/shop", tasks, index_memory=0, convert_age=0.1, copy_chunk_bytes=128 << 10,
            copy_workers=2, merge_bytes=0, **storage,
        )  # fmt: skip
        settings = mirror.settings.environment(
            [
                *storage,
                "slot",
                "publication",
                "index_memory",
                "convert_age",
                "copy_chunk_bytes",
                "copy_workers",
                "merge_bytes",
                "retention_interval",
            ]
        )
        # One slot in each of two executors, whatever the workers offer: others have room beside it.
        (directory / "events").mkdir()
        conf = {
            "spark_cores_max": "2",
            # What a web interface or a history server shows of an application, they have from there.
            "spark_eventLog_enabled": "true",
            "spark_eventLog_dir": (directory / "events").as_uri(),
            "spark_eventLog_compress": "false",
        }
        environment = {**settings, **cluster.environment(**conf), "PGPASSWORD": password}
        return cls(cluster, mirror, s3, Program(dsn, directory, environment), directory, dsn, password)

    @property
    def database(self) -> Database:
        return self.mirror.database

    def start(self) -> None:
        """Starts the pump."""
        self.pump = self.program.start("run", "--log-level", "debug", log="pump.log")

    def stop(self) -> None:
        """Ends the pump in order."""
        assert self.pump is not None
        self.program.stop(self.pump, 120)

    def close(self) -> None:
        if self.pump is not None and self.pump.poll() is None:
            self.program.kill(self.pump)

    def log(self, *steps: Step) -> list[dict[str, object]]:
        """The pump's log lines about these steps."""
        lines = (self.directory / "pump.log").read_bytes().splitlines()
        return [line for line in map(orjson.loads, lines) if line["event"] in steps]

    def await_executors(self, count: int) -> None:
        """Returns once the pump has so many executors, of one slot each, and gives them its tasks."""

        def granted() -> bool:
            assert self.pump is not None
            assert self.pump.poll() is None, f"the pump ended, see {self.directory}"
            is_ready = b'"spark-ready"' in (self.directory / "pump.log").read_bytes()
            return is_ready and any(app["cores"] == count for app in self.cluster.state()["activeapps"])

        await_true(granted, 180, f"{count} executors, see {self.directory}")

    def kill_the_writer_of(self, held: HeldWrite) -> SparkWorker:
        """Kills the node whose task waits for the answer to its write, and then answers."""
        session = session_of(held.pid)
        (worker,) = (worker for worker in self.cluster.workers if worker.process.pid == session)
        worker.kill()
        self.s3.release()
        return worker

    def data_files(self, table: str) -> frozenset[str]:
        """Bucket and key of each file that the table's current snapshot names."""
        storage = StorageOptions(self.mirror.settings.storage_properties)
        lake = LakeTable.load(self.mirror.location(table), storage)
        files = Listing(storage).files(lake.manifests)
        return frozenset(file.path.removeprefix("s3://") for found in files.values() for file in found)

    def with_files(self) -> Program:
        """The program with a service and a password file in place of a DSN and PGPASSWORD."""
        passwords, services = self.directory / "pgpass", self.directory / "services"
        passwords.write_text(f"*:*:*:*:{self.password}\n")
        passwords.chmod(0o600)
        given = "".join(f"{name}={value}\n" for name, value in conninfo_to_dict(self.dsn).items())
        services.write_text(f"[shop]\n{given}")
        environment = {name: value for name, value in self.program.environment.items() if name != "PGPASSWORD"}
        files = {"PGPASSFILE": str(passwords), "PGSERVICEFILE": str(services), "MIRROR_PUMP_DSN": "service=shop"}
        return Program("service=shop", self.directory, environment | files)

    def leaks(self) -> list[str]:
        """Where a secret is to be seen, and what stands before it."""
        texts = self.texts()
        # It looks where applications are described.
        assert any("spark.executorEnv.PYTHONPATH" in text for name, text in texts.items() if name.startswith("events"))
        assert any("mirror-pump" in text for name, text in texts.items() if name.startswith("http"))
        found = []
        for name, text in texts.items():
            for secret in (self.password, SECRET):
                before, hit, _ = text.partition(secret)
                if hit:
                    found.append(f"{name}: after {before[-200:]!r}")
        return found

    def texts(self) -> dict[str, str]:
        """What others on these machines might see: command lines, the web pages of master and workers, event logs, and
        the logs of all processes that take part."""
        shown = self.cluster.pages()
        for path in (self.directory / "events").rglob("*"):
            if path.is_file():
                shown[f"events: {path.name}"] = path.read_text(errors="replace")
        for worker in self.cluster.workers:
            for process in worker.processes:
                # Python workers end when they have nothing to do.
                with suppress(psutil.NoSuchProcess):
                    shown[f"command line of {process.pid}"] = " ".join(process.cmdline())
                    shown[f"environment of {process.pid}"] = str(process.environ())
            logs = [worker.directory / "log", *worker.directory.glob("work/*/*/std*")]
            shown |= {str(log): log.read_text(errors="replace") for log in logs if log.exists()}
        if self.pump is not None:
            driver = psutil.Process(self.pump.pid)
            for process in (driver, *driver.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    shown[f"command line of {process.pid}"] = " ".join(process.cmdline())
            shown["pump.log"] = (self.directory / "pump.log").read_text()
        return shown
