"""cdc: a backlog of 1,000,000 changes to 4,000,000 rows, compared with pg_recvlogical draining an equal slot.

Both read the same WAL with pgoutput and the same publication. Limit and pump take turns, so that other load on the
machine affects both. A run of the pump is repeated by putting catalog and slot back: Iceberg's files never change, so
only the pointers have to be restored.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from benchmarks.bench_copy import rows_at
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pump_process import TABLE
from benchmarks.pumping import NOWHERE_ELSE, BenchmarkFailed, Elsewhere, MeasuredProcess
from benchmarks.sampling import WALSENDER, Peak
from benchmarks.scene import BenchmarkMirror
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.pipeline.flow.steps import Step

_TIMEOUT = 900.0
_LIMIT_RUNS = 3
BATCH_BYTES = 12 << 20
"""1,000,000 changes are about 135 MB of stream: with 12 MiB in a batch, eleven commits."""

_SAVED = {
    "iceberg_tables": ("table_name", ("metadata_location", "previous_metadata_location")),
    "cutline": ("table_id", ("lake_snapshot_id", "replicated_lsn", "lake_props")),
    "mirror_tables": ("table_id", ("lake_head", "key_index", "start_sequence")),
    "mirror_slots": ("slot_name", ("applied_lsn", "applied_commit_time", "applied_at")),
}
"""Tables of schema modak that a run of the pump changes: their keys, and the columns to put back."""


@dataclass(frozen=True)
class StreamRun:
    """How long the pump took for the backlog, and what that cost."""

    seconds: float
    commits: int
    cpu: dict[str, float]
    peak: Peak


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must be live, and no pump may run. Leaves it mirrored up to the last change."""
    rows = rows_at(options)
    changes = rows // 4
    save(mirror, options.repeat)
    write(mirror, changes, rows)
    end = mirror.wal_end()
    mirror.execute("CHECKPOINT")
    settings = {"batch_bytes": max(1 << 16, round(BATCH_BYTES * changes / 1_000_000)), **options.settings}
    limits: list[float] = []
    runs: list[StreamRun] = []
    for number in range(max(_LIMIT_RUNS, options.repeat)):
        limits.append(drain(mirror, f"{mirror.name}_limit_{number}", end))
        if number < options.repeat:
            if number:
                restore(mirror, number)
            runs.append(stream(mirror, options, settings, end, changes))
    equal = is_equal(mirror) if options.verify else None
    seconds = statistics.median(run.seconds for run in runs)
    middle = min(runs, key=lambda run: abs(run.seconds - seconds))
    rate, limit = changes / seconds, changes / statistics.median(limits)
    figures: dict[str, float | int | str | bool] = {
        "cdc.changes": changes,
        "cdc.runs": len(runs),
        "cdc.seconds": round(seconds, 3),
        "cdc.seconds_all": " ".join(f"{run.seconds:.2f}" for run in runs),
        "cdc.limit_seconds_all": " ".join(f"{one:.2f}" for one in limits),
        "cdc.changes_per_s": round(rate),
        "cdc.limit_changes_per_s": round(limit),
        "cdc.ratio": round(rate / limit, 3),
        "cdc.commits": min(run.commits for run in runs),
        "cdc.batch_bytes": str(settings["batch_bytes"]),
        **{f"cdc.cpu_s_per_million.{role}": per_million(used, changes) for role, used in middle.cpu.items()},
        "cdc.cpu_s_per_million": per_million(ours(middle.cpu), changes),
        **middle.peak.figures("cdc"),
    }
    if equal is not None:
        figures["cdc.verified"] = equal
    proof = "not verified" if equal is None else "heap = lake" if equal else "HEAP AND LAKE DIFFER"
    return BenchmarkResult(
        figures,
        (
            Line("cdc", f"{rate:,.0f} changes/s", f"{limit:,.0f} changes/s", f"{rate / limit:.2f}", "≥ 1.4 (AMD 1.8)",
                 f"{middle.commits} commits; {proof}; {cpu_text(middle.cpu)};"
                 f" {per_million(ours(middle.cpu), changes):.1f} for 1,000,000 changes without the walsender"),
            Line("cdc: memory", str(middle.peak)),
        ),
    )  # fmt: skip


def ours(cpu: Mapping[str, float]) -> float:
    """CPU seconds of all processes but the walsender, which the limit needs as well."""
    return sum(used for role, used in cpu.items() if role != WALSENDER)


def per_million(seconds: float, changes: int) -> float:
    """CPU seconds for 1,000,000 changes."""
    return round(seconds * 1_000_000 / changes, 2)


def write(mirror: BenchmarkMirror, changes: int, rows: int) -> None:
    """Make the backlog."""
    with mirror.connect() as connection:
        # The time for writing them is not measured.
        connection.execute("SET synchronous_commit = off")
        connection.execute("CALL public.bench_changes(%s, %s)", (changes, rows))


def stream(
    mirror: BenchmarkMirror,
    options: Options,
    settings: Mapping[str, object],
    end: Lsn,
    changes: int,
    elsewhere: Elsewhere = NOWHERE_ELSE,
) -> StreamRun:
    """From the start of streaming to the last publish."""
    with MeasuredProcess(
        mirror, "cdc", "run", settings, until=end, profiling=options.profiling, elsewhere=elsewhere
    ) as process:
        process.finish(_TIMEOUT)
        steps = process.steps()
        begin = process.first(Step.STREAMING).at
        if any(taken.step is Step.RETRYING for taken in steps):
            raise BenchmarkFailed("the pump lost its connection meanwhile")
        published = [taken for taken in steps if taken.step is Step.PUBLISHED]
        received = sum(taken.details["changes"] for taken in steps if taken.step is Step.RECEIVED)
        if received != changes:
            raise BenchmarkFailed(f"{received} changes were received, not {changes}")
        commits = sum(bool(taken.details["snapshots"]) for taken in published)
        last = max(taken.at for taken in published)
        return StreamRun(last - begin, commits, process.sampler.cpu(begin, last), process.sampler.peak())


def drain(mirror: BenchmarkMirror, slot: str, end: Lsn) -> float:
    """Seconds that pg_recvlogical takes to drain `slot` up to `end`, its start included. The slot is dropped."""
    command = [
        str(mirror.server.binary("pg_recvlogical")), "-d", mirror.dsn, "--slot", slot, "--start", "--no-loop",
        "--endpos", format_lsn(end), "-f", "/dev/null",
        "-o", "proto_version=1", "-o", f"publication_names={mirror.name}",
    ]  # fmt: skip
    begin = time.monotonic()
    subprocess.run(command, timeout=_TIMEOUT, check=True, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - begin
    drop_slot(mirror, slot)
    return seconds


def save(mirror: BenchmarkMirror, repeats: int) -> None:
    """Copies of the slot for the limit and for further runs, and what the catalog says now."""
    with mirror.connect() as connection:
        connection.execute("DROP SCHEMA IF EXISTS bench_saved CASCADE")
        connection.execute("CREATE SCHEMA bench_saved")
        for table in _SAVED:
            connection.execute(f"CREATE TABLE bench_saved.{table} AS TABLE modak.{table}".encode())
        names = [f"{mirror.name}_limit_{number}" for number in range(max(_LIMIT_RUNS, repeats))]
        names += [f"{mirror.name}_again_{number}" for number in range(1, repeats)]
        for name in names:
            connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (mirror.name, name))


def restore(mirror: BenchmarkMirror, number: int) -> None:
    """Everything is as it was before the first run."""
    drop_slot(mirror, mirror.name)
    spare = f"{mirror.name}_again_{number}"
    with mirror.connect() as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (spare, mirror.name))
        with connection.transaction():
            for table, (key, columns) in _SAVED.items():
                values = ", ".join(f"{column} = s.{column}" for column in columns)
                statement = f"UPDATE modak.{table} t SET {values} FROM bench_saved.{table} s WHERE t.{key} = s.{key}"
                connection.execute(statement.encode())
            # What the lake has of the run before is not news, from which a pump would see that the database went back.
            connection.execute("UPDATE modak.mirror_slots SET accepted_until = clock_timestamp() + interval '1 ms'")
    drop_slot(mirror, spare)


def drop_slot(mirror: BenchmarkMirror, name: str) -> None:
    """Drop the slot, if it is there. A walsender needs a moment to let go of its slot."""
    deadline = time.monotonic() + 20
    with mirror.connect() as connection:
        while True:
            row = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (name,)).fetchone()
            if row is None:
                return
            if not row[0]:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
                return
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"slot {name} stays in use")
            time.sleep(0.02)


def is_equal(mirror: BenchmarkMirror) -> bool:
    """Every column of every row; False tells the suite to fail."""
    report = orjson.loads(mirror.program.run("verify", "--json", TABLE, timeout=_TIMEOUT))
    return all(table["equal"] for table in report["tables"]) and len(report["tables"]) == 1
