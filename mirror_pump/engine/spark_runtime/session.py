"""Creates the Spark session, and the settings with which Spark, pyiceberg and others find the lake's catalog."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from psycopg import pq

from mirror_pump.database.mirror_dsn import mirror_of
from mirror_pump.database.search_path import catalog_path
from mirror_pump.engine.spark_runtime.cluster import executor_conf, executor_python, is_cluster
from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.errors import TaskFailed, UsageError
from mirror_pump.lake.iceberg_io import file_io, file_io_properties
from mirror_pump.runtime.background_priority import lower_session, start_in_background
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.runtime.directory_lock import locked
from mirror_pump.runtime.interrupts import in_other_thread
from mirror_pump.runtime.private_files import append_privately, private_directory
from mirror_pump.source.connect import parsed_dsn, with_current_password
from mirror_pump.storage_kinds import kind_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


import re
import threading
from contextlib import contextmanager

from mirror_pump.runtime.telemetry import get_logger

ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
JDBC_PACKAGE = "org.postgresql:postgresql:42.7.8"
CATALOG = "lake"
FORKS = "lake_forks"
"""Catalog of the forks on which maintenance rewrites tables (mirror_pump.lake.commit.forked_rewrite). It has the same
tables in the database as `lake`, but rows of its own."""

_FEW_CYCLES = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:+IgnoreUnrecognizedVMOptions"
    " -XX:+UnlockDiagnosticVMOptions -XX:GuaranteedSafepointInterval=60000 -XX:AsyncDeflationInterval=60000"
)
"""Java options of a session that only starts Python workers, where optimising byte code costs more than it saves, and
so do statistics for other programs, twenty times a second, and housekeeping, five times a second."""

_SELDOM_HEARD = {
    "spark.executor.heartbeatInterval": "300s",
    "spark.network.timeoutInterval": "300s",
    "spark.network.timeout": "600s",
}
"""Settings of such a session whose only executor is the driver itself: by itself, Spark has it hear from itself, and
looks whether it did, every few seconds."""

_LITTLE_HEAP = "-Xms16m -XX:MaxHeapFreeRatio=20 -XX:MinHeapFreeRatio=5"
"""Java options of a driver without data: 250 MB of resident memory instead of 345. Spark itself asks for a limit of 450
MB at least (spark.driver.memory)."""

_LONGEST_DOWNLOAD = 120.0
"""Seconds that a Spark waits for another process of this user whose Spark takes its jars from Maven."""

_DOWNLOAD_LOOKS = Backoff(first=0.05, longest=0.2)

_IDLE_ENDED = "57P01,57P05"
"""SQLSTATEs of a session that the server has ended, by a restart, an administrator or idle_session_timeout. Spark
learns of it by its next statement, which was not executed and may be sent again. By itself, JdbcCatalog sends one again
after errors of class 08 and 40001 alone, so that the first use of each connection in its pool would fail."""

_JDBC_PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""libpq parameters that have the same names and values in the JDBC driver."""


@dataclass(frozen=True)
class SparkSettings:
    """How to start Spark."""

    master: str = "local[*]"
    app_name: str = "mirror-pump"
    jars: bool = True
    """Load Iceberg's runtime and the JDBC driver from Maven. The pump itself needs neither."""
    driver_memory: str = "1g"
    """JVM heap of the driver, which in local mode is Spark's only JVM."""
    background: bool = False
    """Give the JVM and the Python workers that it starts the lowest priority."""
    log: Path | None = None
    """File for the JVM's output (dependency resolution is verbose); None turns the output into log lines."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings, which override everything above."""


def spark_session(settings: SparkSettings = SparkSettings(), catalogs: Mapping[str, str] | None = None) -> SparkSession:
    """Starts Spark, or returns the session of this process if it has one (Spark allows one per process).

    `catalogs` are settings from jdbc_catalog(). Raises UsageError without a usable Java and for settings that Spark
    refuses, and TaskFailed if Java ends, or if the cluster does not answer or ends the application.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(find_java_home())
    # A SPARK_HOME of another version would be started instead of the pinned pyspark.
    os.environ.pop("SPARK_HOME", None)
    builder = SparkSession.builder.master(settings.master).appName(settings.app_name)
    conf = {**_base_conf(settings), **(catalogs or {}), **settings.conf}
    for key, value in conf.items():
        builder = builder.config(key, value)
    with _python_of_workers(settings.master):
        _launch_jvm(settings, conf)
        try:
            # In the main thread, pyspark installs a handler of SIGINT that calls Java in the middle of another call.
            return in_other_thread(builder.getOrCreate, "spark-start")
        except Py4JJavaError as error:
            cause = str(error.java_exception.getMessage()).partition("\n")[0]
            if "IllegalArgumentException" in str(error.java_exception.getClass().getName()):
                raise UsageError(
                    f"Spark refuses its settings: {cause}",
                    "change them in spark-defaults.conf, in the directory that SPARK_CONF_DIR names",
                ) from error
            if not is_cluster(settings.master):
                raise
            raise TaskFailed(
                f"no Spark application could be started on {settings.master}: {cause}",
                "see the log lines before this one, the page of the Spark master, and the logs of its workers",
            ) from error


@contextlib.contextmanager
def _python_of_workers(master: str) -> Iterator[None]:
    """Has a Spark that starts in the block use the right Python. Later ones, and programs that we start, see the
    environment as the user made it."""
    before = {name: os.environ.get(name) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Workers must run with the same packages as the driver. Those of a cluster get them as archives.
    os.environ["PYSPARK_PYTHON"] = executor_python() if is_cluster(master) else sys.executable
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def has_spark() -> bool:
    """Whether this process has a Spark, which the next spark_session() would return."""
    # Not imported for this: it takes a third of a second.
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def end_java() -> None:
    """Ends this process's JVM after Spark was stopped, since it would keep its heap as long as this process runs. The
    next spark_session() starts a new one."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        # There is none, or another program has started it.
        return
    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    # Java ends when its stdin is closed.
    process.stdin.close()
    process.wait()


def _launch_jvm(settings: SparkSettings, conf: Mapping[str, str]) -> None:
    """Starts the process's JVM unless it has one, like pyspark does, but redirects its output."""
    from pyspark import SparkConf, SparkContext, accumulators
    from pyspark.errors import PySparkRuntimeError

    if SparkContext._gateway is not None:
        return
    launched = SparkConf(loadDefaults=False)
    for key, value in {"spark.master": settings.master, "spark.app.name": settings.app_name, **conf}.items():
        # Catalogs have passwords, and everybody on a machine can read command lines. The session gets catalogs instead.
        if not key.startswith("spark.sql.catalog."):
            launched.set(key, value)
    # Two that load the same jars into an empty cache at once would both fail: each writes where the other does.
    alone = (
        locked(private_directory(), _LONGEST_DOWNLOAD, _DOWNLOAD_LOOKS) if settings.jars else contextlib.nullcontext()
    )
    try:
        with alone, append_privately(settings.log) if settings.log is not None else jvm_output() as output:
            gateway = _launched(launched, {"stdout": output, "stderr": output}, background=settings.background)
    except PySparkRuntimeError as error:
        what = "the log lines before this one" if settings.log is None else f"the end of {settings.log}"
        raise TaskFailed(
            "Java ended before Spark had started",
            f"see {what} for what it says. Often there is too little memory for it, an option of JAVA_TOOL_OPTIONS or"
            " spark-defaults.conf that it does not know, or no way to Maven for Iceberg's jars; JAVA_HOME is"
            f" {os.environ['JAVA_HOME']}",
        ) from error
    SparkContext._ensure_initialized(gateway=gateway)
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        # py4j would print a traceback if the JVM ended first, for example by a SIGTERM to all processes of a service.
        # Callers that wait for the JVM notice its end anyway.
        server.handle_error = lambda *_: None


def _launched(conf: SparkConf, output: dict[str, Any], *, background: bool) -> JavaGateway:
    from pyspark.java_gateway import launch_gateway

    if not background:
        return launch_gateway(conf, output)
    gateway = start_in_background(lambda: launch_gateway(conf, {**output, "start_new_session": True}))
    lower_session(gateway.proc.pid)
    return gateway


_EXPECTED = re.compile(
    r"WARNING: Using incubator modules: jdk\.incubator\.vector"
    r"|Setting default log level to |To adjust logging level use |Setting Spark log level to "
    r"|:: |\t|\s*$|Ivy Default Cache set to|The jars for the packages stored in|\S+#\S+ added as a dependency"
)
"""Beginnings of lines that Spark writes at each start, and of Ivy's report when it resolves jars."""
_LEVELS = re.compile(r"\S+Z (ERROR|FATAL|WARN) spark ")
"""Prefix of a log line as laid out by log4j2.properties."""

_LAST_LINES_WITHIN = 5.0
"""Seconds to wait for the last lines of a JVM. One that goes on after an error keeps the pipe open."""


@contextmanager
def jvm_output() -> Iterator[int]:
    """A descriptor to pass to the JVM as stdout and stderr. What it and its Python workers write becomes lines of our
    log: plain text would be between JSON lines, across progress bars, and in a command's output.

    Our copy is closed at the end of the block; the JVM's stays open as long as the JVM runs. After an error in the
    block, such as a JVM that has ended, what it wrote is logged first."""
    read, write = os.pipe()
    thread = threading.Thread(target=_forward, args=(read,), name="jvm-log", daemon=True)
    thread.start()
    try:
        yield write
    except BaseException:
        os.close(write)
        thread.join(_LAST_LINES_WITHIN)
        raise
    os.close(write)


def _forward(descriptor: int) -> None:
    log = get_logger("spark")
    with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace", newline="\n") as lines:
        for line in lines:
            text = line.rstrip("\r\n")
            if _EXPECTED.match(text):
                log.debug(text)
                continue
            level = _LEVELS.match(text)
            if level is not None and level[1] != "WARN":
                log.error(text)
            else:
                log.warning(text)


def _base_conf(settings: SparkSettings) -> dict[str, str]:
    java_options = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    if not is_cluster(settings.master):
        # The default of spark.local.dir: others can read what Spark puts there, rows among it.
        java_options += f" -Djava.io.tmpdir={shlex.quote(str(private_directory()))}"
    if not settings.jars:
        java_options += f" {_FEW_CYCLES} {_LITTLE_HEAP}"
    conf = {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": java_options,
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # What the web interface and event logs hide, where they are switched on: Spark's own pattern, and `access-key`.
        "spark.redaction.regex": "(?i)secret|password|token|access[.-]?key",
        "spark.sql.session.timeZone": "UTC",
        # Executors are looked at this often. Spark's own default, 60 s, refuses any `spark.network.timeout` below.
        "spark.network.timeoutInterval": "5s",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "mirror_pump.engine.spark_runtime.worker_daemon",
        # Tables here are small for Spark's default of 200 shuffle partitions.
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Forget finished jobs and stages early: the pump runs for months, and some of its jobs for a minute.
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.worker.ui.retainedExecutors": "10",
    }
    if not is_cluster(settings.master):
        # Bind to loopback: no other machine needs the driver, and the host name may not resolve.
        conf |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        if not settings.jars:
            conf |= _SELDOM_HEARD
    else:
        conf |= executor_conf()
        if not settings.jars:
            conf["spark.executor.extraJavaOptions"] = _FEW_CYCLES
    if settings.jars:
        conf |= {
            "spark.jars.packages": f"{ICEBERG_PACKAGE},{JDBC_PACKAGE}",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        }
    return conf


def jdbc_catalog(name: str, dsn: str, warehouse: str) -> dict[str, str]:
    """Spark settings of the Iceberg catalog in the database `dsn`, for a session that calls it `name`.

    JdbcCatalog selects its rows by the catalog's name, so mirrored tables are found only if `name` is `lake`.
    """
    access = libpq_access(dsn)
    prefix = f"spark.sql.catalog.{name}"
    conf = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": access.jdbc_url(),
        f"{prefix}.jdbc.user": access.user,
        f"{prefix}.jdbc.schema-version": "V1",
        # Without parameters in statements a trigger sees which commit is repeated (sql/functions/engine_commits.sql).
        f"{prefix}.jdbc.preferQueryMode": "simple",
        f"{prefix}.retryable_status_codes": _IDLE_ENDED,
        f"{prefix}.warehouse": warehouse,
        # The pump publishes every second: a table cached by Spark would be read at an old frontier.
        f"{prefix}.cache-enabled": "false",
    }
    if access.password is not None:
        conf[f"{prefix}.jdbc.password"] = access.password
    return conf


def maven_packages(*warehouses: str) -> tuple[str, ...]:
    """What Spark takes from Maven to read and rewrite Iceberg tables in these warehouses: each a group:name:version."""
    kinds = dict.fromkeys(kind for warehouse in warehouses if (kind := kind_of(warehouse)) is not None)
    return (ICEBERG_PACKAGE, JDBC_PACKAGE, *(kind.java_bundle for kind in kinds))


def storage_conf(name: str, warehouse: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark settings with which catalog `name` reaches the warehouse's storage; none for local files.

    `properties` are those of pyiceberg's FileIO (`s3.endpoint` and so on). The result contains secrets: the settings of
    the catalog are for a session (see lake_sessions.py), not for the start of Spark.
    """
    if kind_of(warehouse) is None:
        return {}
    prefix = f"spark.sql.catalog.{name}"
    catalog_conf = {"io-impl": file_io(warehouse), **file_io_properties(warehouse, properties)}
    packages = {"spark.jars.packages": ",".join(maven_packages(warehouse))}
    return packages | {f"{prefix}.{key}": value for key, value in catalog_conf.items()}


@dataclass(frozen=True)
class LibpqAccess:
    """A libpq connection string, combined with the environment and libpq's defaults."""

    hosts: tuple[tuple[str, int], ...]
    database: str
    user: str
    password: str | None = field(repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Values of the _JDBC_PARAMETERS that are set."""
    mirror: str | None = None
    """The mirror that it is for."""

    @property
    def catalog_path(self) -> str:
        """The search_path for clients of the mirror's JDBC catalog."""
        return catalog_path(self.mirror)

    def jdbc_url(self, search_path: str | None = None) -> str:
        """A URL for the PostgreSQL JDBC driver, without user and password. The driver sends search_path, which it calls
        the current schema, in the startup packet; by default `catalog_path`."""
        path = self.catalog_path if search_path is None else search_path
        query = urlencode({"currentSchema": path, "ApplicationName": "mirror-pump", **self.parameters})
        return f"jdbc:postgresql://{self._authority()}/{quote(self.database, safe='')}?{query}"

    def sqlalchemy_url(self) -> str:
        """A URL for SQLAlchemy with psycopg, as pyiceberg's SqlCatalog expects, including user and password."""
        secret = "" if self.password is None else ":" + quote(self.password, safe="")
        query = urlencode({"options": f"-csearch_path={self.catalog_path}", **self.parameters}, quote_via=quote)
        (host, port), *_ = self.hosts
        database = quote(self.database, safe="")
        return f"postgresql+psycopg://{quote(self.user, safe='')}{secret}@{_bracket(host)}:{port}/{database}?{query}"

    def _authority(self) -> str:
        return ",".join(f"{_bracket(host)}:{port}" for host, port in self.hosts)


def libpq_access(dsn: str) -> LibpqAccess:
    """Parses a libpq URI or key=value string for clients that do not use libpq.

    The password is the current one, if it changes: these clients use it until it is refused. Raises UsageError for
    features that only libpq has: service files and Unix sockets; and the errors of `connect` for a changing password.
    """
    dsn = with_current_password(dsn)
    explicit = {key: str(value) for key, value in parsed_dsn(dsn).items() if value not in (None, "")}
    defaults = {
        option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val is not None
    }
    values = {**defaults, **explicit}
    if values.get("service"):
        raise UsageError(
            "connection services (service=...) only work with libpq", "give host, port, dbname and user in the DSN"
        )
    names = (values.get("hostaddr") or values.get("host") or "localhost").split(",")
    if any(name.startswith(("/", "@")) for name in names):
        raise UsageError(
            f"{','.join(names)} is a Unix socket, but Spark can reach the catalog by TCP only",
            "give a host name or address in the DSN, such as host=127.0.0.1",
        )
    ports = (values.get("port") or "5432").split(",")
    ports = ports * len(names) if len(ports) == 1 else ports
    user = values.get("user") or getpass.getuser()
    return LibpqAccess(
        hosts=tuple((name or "localhost", int(port or 5432)) for name, port in zip(names, ports, strict=True)),
        database=values.get("dbname") or user,
        user=user,
        password=values.get("password"),
        parameters={name: values[name] for name in _JDBC_PARAMETERS if name in explicit},
        mirror=mirror_of(dsn),
    )


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
