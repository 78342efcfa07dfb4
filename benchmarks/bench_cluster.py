"""cluster: copy and cdc with 1, 2 and 4 executors of a Spark cluster, beside local[2] in one process, on equal data.

The warehouse is in S3. Master, workers, executors, driver, PostgreSQL and the S3 server share this machine, so rates
cannot grow beyond its cores. What carries over to more machines is the CPU that each part uses for a row or a change:
executors add up, while walsender, receiver and publish are one thread each. docs/scaling.md multiplies these figures.

A mirror decodes its database's WAL once. How much a second reader of the same WAL costs is measured as well: one whose
publication has no table, in this database and in another one of the same server.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from benchmarks import bench_cdc
from benchmarks.bench_copy import rows_at
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed, Elsewhere, MeasuredProcess
from benchmarks.s3_process import s3_process
from benchmarks.sampling import WALSENDER, Sampler, parent_of
from benchmarks.scene import BenchmarkMirror, BenchmarkScene
from mirror_pump.lake.storage import StorageOptions, StoredFile, list_files
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from tests.support.spark_cluster import SparkCluster, spark_cluster

_EXECUTORS = (1, 2, 4)
_TIMEOUT = 900.0
_NODES, _NODE_CORES = 2, 2
_CHUNK_BYTES = 32 << 20
"""At scale 1, so that four executors have four chunks each."""
_LEAST_BATCH = 4 << 20
"""At smaller scales. A segment."""
_LOCAL = "local[2]"

Figures = dict[str, float | int | str | bool]


@dataclass(frozen=True)
class _Place:
    """Where the tasks run."""

    name: str
    """For people: `local[2]`, `2 executors`."""
    key: str
    """In latest.json."""
    slots: int
    elsewhere: Elsewhere
    settings: Mapping[str, object]


@dataclass(frozen=True)
class _Measured:
    seconds: float
    cpu: Mapping[str, float]


@contextmanager
def mirrored(scene: BenchmarkScene, options: Options) -> Iterator[tuple[BenchmarkMirror, int]]:
    """A mirror in S3, and the process id of the S3 server."""
    with (
        s3_process() as (storage, pid),
        scene.mirror("bench_cluster", rows_at(options), storage=storage) as mirror,
    ):
        yield mirror, pid


def run(mirror: BenchmarkMirror, storage: int, options: Options) -> BenchmarkResult:
    """The table must not be registered. `storage`: process id of the S3 server."""
    rows = rows_at(options)
    changes = rows // 4
    figures: Figures = {"cluster.rows": rows, "cluster.changes": changes}
    lines: list[Line] = []
    with spark_cluster(mirror.directory / "cluster", _NODES, _NODE_CORES) as cluster:
        places = [_local(storage, options), *(_executors(cluster, storage, count, options) for count in _EXECUTORS)]
        copies = []
        for number, place in enumerate(places):
            if number:
                mirror.program.run("unregister", TABLE, "--drop-lake")
            copies.append(_copied(mirror, options, place, rows))
        _report("copy", "rows", rows, places, copies, figures, lines)
        figures |= _sizes(mirror, rows)
        bench_cdc.save(mirror, len(places))
        with _idle_slots(mirror) as idle:
            begin, objects = mirror.wal_end(), len(_objects(mirror))
            bench_cdc.write(mirror, changes, rows)
            end = mirror.wal_end()
            figures["cluster.wal_bytes_per_change"] = round((end - begin) / changes)
            figures["cluster.full_page_bytes_per_change"] = round(_full_pages(mirror, begin, end) / changes)
            mirror.execute("CHECKPOINT")
            streams = []
            for number, place in enumerate(places):
                if number:
                    bench_cdc.restore(mirror, number)
                settings = {"batch_bytes": max(_LEAST_BATCH, round(bench_cdc.BATCH_BYTES * changes / 1_000_000))}
                streamed = bench_cdc.stream(
                    mirror, options, {**settings, **place.settings}, end, changes, place.elsewhere
                )
                streams.append(_Measured(streamed.seconds, streamed.cpu))
                if not number:
                    figures["cluster.objects_per_commit"] = round(
                        (len(_objects(mirror)) - objects) / streamed.commits, 1
                    )
            _report("cdc", "changes", changes, places, streams, figures, lines)
            _readers(mirror, idle, end, changes, figures, lines)
    if options.verify:
        figures["cluster.verified"] = bench_cdc.is_equal(mirror)
    return BenchmarkResult(figures, tuple(lines))


def _objects(mirror: BenchmarkMirror) -> list[StoredFile]:
    """What is in the warehouse."""
    storage = StorageOptions(Settings(**mirror.storage).storage_properties)  # type: ignore[arg-type]  # pydantic reads texts
    return list(list_files(mirror.storage["warehouse"], storage))


def _full_pages(mirror: BenchmarkMirror, begin: Lsn, end: Lsn) -> int:
    """Bytes of full-page images in this part of the WAL: how many depends on how far checkpoints are apart."""
    with mirror.connect() as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        lsns = (format_lsn(begin), format_lsn(end))
        found = connection.execute("SELECT sum(fpi_size)::bigint FROM pg_get_wal_stats(%s, %s)", lsns).fetchone()
    assert found is not None
    return int(found[0])


def _sizes(mirror: BenchmarkMirror, rows: int) -> Figures:
    """Right after a copy."""
    with mirror.connect() as connection:
        heap = connection.execute("SELECT pg_relation_size('public.acct')").fetchone()
    assert heap is not None
    lake = sum(file.size_bytes for file in _objects(mirror))
    return {"cluster.heap_bytes_per_row": round(heap[0] / rows), "cluster.lake_bytes_per_row": round(lake / rows)}


def _local(storage: int, options: Options) -> _Place:
    return _Place(_LOCAL, "local", 2, Elsewhere(storage=storage), {**options.settings, "master": _LOCAL})


def _executors(cluster: SparkCluster, storage: int, count: int, options: Options) -> _Place:
    environment = cluster.environment(spark_cores_max=str(count), spark_executor_cores="1")
    elsewhere = Elsewhere(tuple(worker.process.pid for worker in cluster.workers), storage, environment)
    # The copy keeps every slot busy: nothing streams meanwhile.
    settings = {**options.settings, "master": cluster.master, "copy_workers": count}
    return _Place(f"{count} executor{'s'[: count > 1]}", str(count), count, elsewhere, settings)


def _copied(mirror: BenchmarkMirror, options: Options, place: _Place, rows: int) -> _Measured:
    """From the first chunk to live."""
    settings = {"copy_chunk_bytes": max(1 << 20, round(_CHUNK_BYTES * options.scale)), **place.settings}
    with MeasuredProcess(
        mirror, f"copy-{place.key}", "register", settings, profiling=options.profiling, elsewhere=place.elsewhere
    ) as process:
        process.finish(_TIMEOUT)
        begin, end = process.first(Step.COPY_PLANNED).at, process.first(Step.LIVE).at
        copied = sum(taken.details["rows"] for taken in process.steps() if taken.step is Step.CHUNK_COPIED)
        if copied != rows:
            raise BenchmarkFailed(f"{copied} rows were copied, not {rows}")
        return _Measured(end - begin, process.sampler.cpu(begin, end))


def _report(
    name: str, unit: str, count: int, places: list[_Place], runs: list[_Measured], figures: Figures, lines: list[Line]
) -> None:
    """Each place beside the first one, which is local."""
    limit = count / runs[0].seconds
    for place, measured in zip(places, runs, strict=True):
        rate = count / measured.seconds
        each = {role: seconds / count * 1e6 for role, seconds in measured.cpu.items() if seconds >= 0.05}
        figures |= {
            f"cluster.{name}_{place.key}_per_s": round(rate),
            **{f"cluster.{name}_{place.key}_{role}_us": round(cpu, 2) for role, cpu in each.items()},
        }
        shares = ", ".join(f"{role} {cpu:.2f}" for role, cpu in each.items())
        lines.append(
            Line(
                f"cluster: {name}, {place.name}",
                f"{rate:,.0f} {unit}/s",
                f"{limit:,.0f} {unit}/s",
                f"{rate / limit:.2f}",
                "",
                f"CPU µs for each: {sum(each.values()):.1f} in all; {shares}",
            )
        )


@dataclass(frozen=True)
class _IdleSlot:
    """A slot whose reader gets none of the changes."""

    slot: str
    dsn: str
    where: str


@contextmanager
def _idle_slots(mirror: BenchmarkMirror) -> Iterator[list[_IdleSlot]]:
    """One in the mirror's database and one in another, from before the changes."""
    other = mirror.server.create_database("bench_cluster_idle")
    try:
        slots = [
            _IdleSlot("bench_idle_here", mirror.dsn, "in this database"),
            _IdleSlot("bench_idle_elsewhere", other, "in another database"),
        ]
        for idle in slots:
            with psycopg.connect(idle.dsn, autocommit=True) as connection:
                connection.execute("CREATE PUBLICATION bench_idle")
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (idle.slot,))
        yield slots
    finally:
        # Its slot would keep it from being dropped.
        with mirror.connect() as connection:
            for slot in ("bench_idle_here", "bench_idle_elsewhere"):
                connection.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                    " WHERE slot_name = %s AND database = current_database()",
                    (slot,),
                )
        mirror.server.drop_database("bench_cluster_idle")


def _readers(
    mirror: BenchmarkMirror, idle: list[_IdleSlot], end: Lsn, changes: int, figures: Figures, lines: list[Line]
) -> None:
    """What one walsender can send at most, and what it costs one that has nothing to send."""
    seconds, cpu = _drain(mirror, f"{mirror.name}_limit_0", mirror.dsn, mirror.name, end)
    figures |= {
        "cluster.walsender_per_s": round(changes / seconds),
        "cluster.walsender_us": round(cpu / changes * 1e6, 2),
    }
    remark = f"pg_recvlogical; {cpu_text({WALSENDER: cpu})}"
    lines.append(Line("cluster: one walsender alone", f"{changes / seconds:,.0f} changes/s", remark=remark))
    for slot, name in zip(idle, ("here", "elsewhere"), strict=True):
        seconds, cpu = _drain(mirror, slot.slot, slot.dsn, "bench_idle", end)
        figures |= {
            f"cluster.idle_{name}_per_s": round(changes / seconds),
            f"cluster.idle_{name}_us": round(cpu / changes * 1e6, 2),
        }
        lines.append(
            Line(
                f"cluster: a reader without tables, {slot.where}",
                f"{changes / seconds:,.0f} changes/s",
                remark=cpu_text({WALSENDER: cpu}),
            )
        )


def _drain(mirror: BenchmarkMirror, slot: str, dsn: str, publication: str, end: Lsn) -> tuple[float, float]:
    """Seconds, and CPU seconds of the walsender, that it takes to read the slot up to `end`."""
    command = [
        str(mirror.server.binary("pg_recvlogical")), "-d", dsn, "--slot", slot, "--start", "--no-loop",
        "--endpos", format_lsn(end), "-f", "/dev/null",
        "-o", "proto_version=1", "-o", f"publication_names={publication}",
    ]  # fmt: skip
    begin = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process, mirror.connect() as connection:
        sampler = Sampler(process.pid, parent_of(connection.info.backend_pid))
        sampler.start()
        try:
            code = process.wait(_TIMEOUT)
            finished = time.monotonic()
        finally:
            process.kill()
            sampler.stop()
    if code != 0:
        raise BenchmarkFailed(f"pg_recvlogical ended with {code}")
    return finished - begin, sampler.cpu(begin, finished).get(WALSENDER, 0.0)
