"""One transaction of 5,000,000 rows through the real program: memory as for 500,000, and an exact result. Linux
only."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sampling import Peak, Sampler, parent_of
from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner

SMALL, LARGE = 500_000, 5_000_000


def drained(mirror: Mirror, program: Program) -> Peak:
    """The memory that `mirror-pump run` needs until everything committed now is published."""
    until = format_lsn(mirror.database.lsn())
    options = ("--slot", mirror.settings.slot, "--until-lsn", until)
    process = program.start("run", *options, log="run.log")
    with mirror.database.connect() as connection:
        sampler = Sampler(process.pid, parent_of(connection.info.backend_pid))
    sampler.start()
    try:
        assert process.wait(1500) == 0
    finally:
        sampler.stop()
        if process.poll() is None:
            program.kill(process)
    return sampler.peak()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_memory_does_not_grow_with_the_transaction(database: Database, warehouse: str, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO u SELECT g, 'before' FROM generate_series(1, 1000) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", "u")
    mirror.catch_up()
    program = Program(database.dsn, tmp_path)
    peaks: dict[str, Peak] = {}
    last = 0
    for name, rows in (("small", SMALL), ("large", LARGE)):
        with database.connect() as connection, connection.transaction():
            connection.execute("UPDATE u SET v = %s WHERE id %% 3 = 0", (name,))
            connection.execute(
                "INSERT INTO t SELECT g, 0, md5(g::text) FROM generate_series(%s::bigint, %s) g",
                (last + 1, last + rows),
            )
            connection.execute("SAVEPOINT s")
            connection.execute("DELETE FROM t WHERE id % 100 = 0")
            connection.execute("ROLLBACK TO SAVEPOINT s")
            connection.execute("DELETE FROM u WHERE id %% 10 = %s", (1 if name == "small" else 2,))
        last += rows
        peaks[name] = drained(mirror, program)
        mirror.assert_equal("public.u")
    print(f"inserts: {SMALL:,} rows {peaks['small']}; {LARGE:,} rows {peaks['large']}")
    found = "count(*), count(DISTINCT id), min(id), max(id), count(*) FILTER (WHERE n = {n} AND v = md5(id::text))"
    assert _row(mirror, found.format(n=0)) == [last, last, 1, last, last]
    small, large = peaks["small"], peaks["large"]
    assert large.driver < small.driver * 1.3 + 50, "the driver's memory"
    assert large.workers < small.workers * 1.3 + 50, "the workers' memory"
    assert large.total < small.total * 1.3 + 200, "all together; the Java heap grows towards its limit"
    # Updates of every row. Memory grows only for the key index, which has a budget of its own, and for a commit's
    # changes of it.
    for name, where in (("small", f"id <= {SMALL}"), ("large", f"id > {SMALL}")):
        with database.connect() as connection:
            connection.execute(f"UPDATE t SET n = n + 1 WHERE {where}".encode())
        peaks[name] = drained(mirror, program)
    print(f"updates: {SMALL:,} rows {peaks['small']}; {LARGE:,} rows {peaks['large']}")
    mirror.assert_equal("public.u")
    # By Spark: the first of these transactions writes its deletes by key, which would take DuckDB hours.
    process = program.start("run", "--slot", mirror.settings.slot, log="run.log")
    try:
        program.run("verify", "--slot", mirror.settings.slot, timeout=1500)
    finally:
        program.kill(process)
    mirror.assert_sound()


def _row(mirror: Mirror, selected: str) -> list[int]:
    table = read_duckdb(mirror.location("public.t"), f"SELECT {selected} FROM lake")
    return [column[0].as_py() for column in table.columns]
