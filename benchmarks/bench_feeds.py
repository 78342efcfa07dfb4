"""feeds: what change feeds cost. cdc and lag of a table with a feed beside the same table without, and a scan of a day
of 10,000,000 changes, in files as the pump merges them, beside a scan of a table of these rows in large files."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from benchmarks import bench_cdc, bench_copy
from benchmarks.bench_cdc import BATCH_BYTES, StreamRun, ours, per_million, restore, save, stream, write
from benchmarks.bench_lag import Phase, measured
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.scene import BenchmarkMirror
from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.engine.rewrite.feed_merge import (
    choose_neighbours,
    feed_files,
    join_files,
    merge_rewrite,
    merge_task,
)
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.feed_schema import FEED_PARTITIONING, feed_schema_of
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions, alter_feed
from mirror_pump.settings.config import Settings
from mirror_pump.testing.lake import duckdb_connection

DAY_ROWS = 10_000_000
_PUBLISHED = 20_000
"""Changes of one file of the day: those of some seconds."""
_TARGET = 128 << 20
_PLAIN_FILE_ROWS = 4_000_000
_SCANS = 5
_BEGIN = datetime.datetime(2026, 5, 4, tzinfo=datetime.UTC)
_STORAGE = StorageOptions(fsync=False)
_TIMEOUT = 900.0
_CDC_GOAL, _LAG_GOAL, _READ_GOAL = "≥ 0.7", "≤ 1.2", "≤ 1.1"


def run(plain: BenchmarkMirror, fed: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The tables of both mirrors are live, and no pump runs. `fed` gets a feed."""
    settings = Settings(dsn=fed.dsn, slot=fed.name, publication=fed.name)
    alter_feed(settings, TABLE, FeedOptions(FeedMode.KEYS))
    # A feed begins with a publish.
    fed.execute("UPDATE public.acct SET note = note WHERE id = 1")
    with MeasuredProcess(fed, "begin", "run", options.settings, until=fed.wal_end()) as process:
        process.finish(_TIMEOUT)
    parts = (_cdc(plain, fed, options), _lag(plain, fed, options), read(options))
    figures = {name: value for part in parts for name, value in part.figures.items()}
    return BenchmarkResult(figures, tuple(line for part in parts for line in part.lines))


def _cdc(plain: BenchmarkMirror, fed: BenchmarkMirror, options: Options) -> BenchmarkResult:
    rows = bench_copy.rows_at(options)
    changes = rows // 4
    batch_bytes = max(1 << 16, round(BATCH_BYTES * changes / 1_000_000))
    settings = {"batch_bytes": batch_bytes, **options.settings}
    runs: dict[str, list[StreamRun]] = {plain.name: [], fed.name: []}
    ends = {}
    for mirror in (plain, fed):
        save(mirror, options.repeat)
        write(mirror, changes, rows)
        ends[mirror.name] = mirror.wal_end()
        mirror.execute("CHECKPOINT")
    for number in range(options.repeat):
        # They take turns, so that other load on the machine affects both.
        for mirror in (plain, fed):
            if number:
                restore(mirror, number)
            runs[mirror.name].append(stream(mirror, options, settings, ends[mirror.name], changes))
    if options.verify and not (bench_cdc.is_equal(plain) and bench_cdc.is_equal(fed)):
        raise BenchmarkFailed("heap and lake differ")
    rates, cpu = {}, {}
    for mirror in (plain, fed):
        seconds = statistics.median(one.seconds for one in runs[mirror.name])
        rates[mirror.name] = changes / seconds
        middle = min(runs[mirror.name], key=lambda one: abs(one.seconds - seconds))
        cpu[mirror.name] = per_million(ours(middle.cpu), changes)
    ratio = rates[fed.name] / rates[plain.name]
    return BenchmarkResult(
        {
            "feeds.cdc_changes": changes,
            "feeds.cdc_changes_per_s": round(rates[fed.name]),
            "feeds.cdc_plain_changes_per_s": round(rates[plain.name]),
            "feeds.cdc_ratio": round(ratio, 3),
            "feeds.cdc_seconds_all": " ".join(f"{one.seconds:.2f}" for one in runs[fed.name]),
            "feeds.cdc_plain_seconds_all": " ".join(f"{one.seconds:.2f}" for one in runs[plain.name]),
            "feeds.cdc_cpu_s_per_million": cpu[fed.name],
            "feeds.cdc_plain_cpu_s_per_million": cpu[plain.name],
        },
        (
            Line("cdc with a feed", f"{rates[fed.name]:,.0f} changes/s", f"without: {rates[plain.name]:,.0f} changes/s",
                 f"{ratio:.2f}", _CDC_GOAL,
                 f"{cpu_text(middle.cpu)}; {cpu[fed.name]:.1f} and {cpu[plain.name]:.1f} for 1,000,000 changes"),
        ),
    )  # fmt: skip


def _lag(plain: BenchmarkMirror, fed: BenchmarkMirror, options: Options) -> BenchmarkResult:
    without = measured(plain, options, Phase("feeds_lag_plain", "feeds.lag_plain_", "lag without a feed"))
    beside = measured(fed, options, Phase("feeds_lag", "feeds.lag_", "lag with a feed"))
    figures = {**without.figures, **beside.figures}
    lines = [*without.lines, *beside.lines]
    for name in ("p50_s", "p99_s"):
        with_feed, limit = float(beside.figures[f"feeds.lag_{name}"]), float(without.figures[f"feeds.lag_plain_{name}"])
        ratio = round(with_feed / limit, 2)
        figures[f"feeds.lag_{name.removesuffix('_s')}_ratio"] = ratio
        what = f"lag with a feed: {name.removesuffix('_s')}"
        lines.append(Line(what, f"{with_feed:.3f} s", f"without: {limit:.3f} s", f"{ratio:.2f}", _LAG_GOAL))
    return BenchmarkResult(figures, tuple(lines))


_COLUMNS = LakeSchema.from_iceberg_json(
    {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": number, "name": name, "required": False, "type": kind}
            for number, (name, kind) in enumerate(
                (
                    ("id", "long"),
                    ("branch", "int"),
                    ("balance", "decimal(14, 2)"),
                    ("note", "string"),
                    ("updated", "timestamptz"),
                ),
                1,
            )
        ],
    }
)


def read(options: Options) -> BenchmarkResult:
    """Scans by DuckDB of all columns."""
    rows = options.scaled(DAY_ROWS, 100_000)
    with TemporaryDirectory(prefix="bench_feeds") as directory:
        feed, rewritten = _day(Path(directory) / "feed", rows)
        plain = _plain(Path(directory) / "plain", rows)
        locations = {"feed": feed.metadata_location, "plain": plain.metadata_location}
        seconds: dict[str, list[float]] = {name: [] for name in locations}
        with duckdb_connection() as connection:
            for number in range(_SCANS + 1):
                for name, location in locations.items():
                    began = time.monotonic()
                    answer = connection.execute(_scan(location)).fetchone()
                    if answer is None or answer[0] != rows:
                        raise BenchmarkFailed(f"{answer} were read, not {rows} changes")
                    # The first one fills caches.
                    seconds[name] += [time.monotonic() - began] if number else []
    ours_s, limit_s = (statistics.median(seconds[name]) for name in ("feed", "plain"))
    ratio = ours_s / limit_s
    return BenchmarkResult(
        {
            "feeds.read_rows": rows,
            "feeds.read_s": round(ours_s, 3),
            "feeds.read_limit_s": round(limit_s, 3),
            "feeds.read_ratio": round(ratio, 3),
            "feeds.read_files": feed.data_files,
            "feeds.read_plain_files": plain.data_files,
            "feeds.read_written_per_row": round(1 + rewritten / rows, 2),
        },
        (
            Line("read of a day's changes", f"{ours_s:.2f} s, {rows / ours_s / 1e6:.1f} M rows/s",
                 f"plain table: {limit_s:.2f} s", f"{ratio:.2f}", _READ_GOAL,
                 f"{rows:,} changes in {feed.data_files} files, each written {1 + rewritten / rows:.1f} times; the"
                 f" table has {plain.data_files} files"),
        ),
    )  # fmt: skip


def _scan(location: str) -> str:
    columns = ("_op", "_lsn", "_seq", "_xid", "_committed_at", "_origin", *(field.name for field in _COLUMNS.fields))
    # One number of all columns: DuckDB hands out times with a zone by a package that we do not have.
    highest = ", ".join(f"max({name})" for name in columns)
    return f"SELECT count(*), hash({highest}) FROM iceberg_scan('{location}')"


def _day(directory: Path, rows: int) -> tuple[LakeTable, int]:
    """A feed of one day in files as publishes bring them, merged as the pump does. Also how many rows were written
    again."""
    schema = feed_schema_of(_COLUMNS, FeedMode.KEYS)
    created = LakeTable.create(schema, str(directory), _STORAGE, {}, _now(), partitioning=FEED_PARTITIONING)
    table, listing, rewritten = created.table, listing_for(created.table), 0
    for batch in _batches(schema, rows, _PUBLISHED):
        files = (_written(batch, schema, table),)
        table = table.stage(RowDelta((SegmentFiles(files, ()),)), _now()).table
        while chosen := choose_neighbours(feed_files(table, listing), _TARGET):
            joined = join_files(merge_task(table, chosen)).file
            rewrite = merge_rewrite(chosen, joined, listing)
            table = table.stage(RowDelta((), replaces=rewrite), _now()).table
            rewritten += joined.record_count
    return table, rewritten


def _plain(directory: Path, rows: int) -> LakeTable:
    schema = feed_schema_of(_COLUMNS, FeedMode.KEYS)
    created = LakeTable.create(schema, str(directory), _STORAGE, {}, _now(), partitioning=FEED_PARTITIONING)
    files: list[WrittenFile] = []
    batches = _batches(schema, rows, _PUBLISHED)
    left = True
    while left:
        left = False
        with DataFileWriter(schema, created.table.location, _STORAGE, partition=_partition()) as writer:
            for number, batch in enumerate(batches, 1):
                writer.write(batch)
                if number * _PUBLISHED >= _PLAIN_FILE_ROWS:
                    left = True
                    break
        files.append(writer.written)
    return created.table.stage(RowDelta((SegmentFiles(tuple(files), ()),)), _now()).table


def _written(batch: pa.Table, schema: LakeSchema, table: LakeTable) -> WrittenFile:
    with DataFileWriter(schema, table.location, _STORAGE, partition=_partition()) as writer:
        writer.write(batch)
    return writer.written


_CHANGES = """
SELECT CASE WHEN i % 10 < 5 THEN 'update' WHEN i % 10 < 9 THEN 'insert' ELSE 'delete' END AS _op,
       (i // 10) * 1024 AS _lsn, (i % 10) * 2 AS _seq, 1000 + i // 10 AS _xid,
       TIMESTAMPTZ '{day}' + to_microseconds(i * {pace}) AS _committed_at, NULL::VARCHAR AS _origin,
       (random() * 4000000)::BIGINT AS id, (random() * 100)::INTEGER AS branch,
       (random() * 1000000)::DECIMAL(14, 2) AS balance, md5(i::VARCHAR) || left(md5((i + 1)::VARCHAR), 8) AS note,
       TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_microseconds(i * 1000137) AS updated
  FROM range({begin}, {end}) r(i)
"""
"""Updates of random rows, inserts and deletes, ten in a transaction."""


def _batches(schema: LakeSchema, rows: int, size: int) -> Iterator[pa.Table]:
    """The changes of one day."""
    with duckdb_connection() as connection:
        connection.execute("SELECT setseed(0.5)")
        for begin in range(0, rows, size):
            end = min(begin + size, rows)
            pace = 80_000_000_000 // rows
            changes = _CHANGES.format(day=_BEGIN.isoformat(), pace=pace, begin=begin, end=end)
            yield connection.execute(changes).to_arrow_table().cast(schema.arrow).combine_chunks()


def _partition() -> tuple[int]:
    return ((_BEGIN - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)).days,)


def _now() -> int:
    return time.time_ns() // 1_000_000
