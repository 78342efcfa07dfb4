"""Full storage, of the lake, Spark or the server: reported clearly, nothing lost, half done or left behind.

The file systems are real ones: small tmpfs mounts. Where only root may mount, they are in a name space of their own,
which a process of ours holds open; where even that is forbidden, these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner, TaskRunner
from mirror_pump.errors import StorageFull
from mirror_pump.lake.storage import StorageOptions, open_output, write_all
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BALLOON = "balloon"


@contextmanager
def mounted(directory: Path, size: str, *, owner: str = "") -> Iterator[Callable[[str], None]]:
    """A tmpfs on `directory` within the block. Yields a function that changes its size."""

    def mount(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["mount", *arguments, str(directory)], capture_output=True, text=True, check=False)

    done = mount("-t", "tmpfs", "-o", f"size={size}{owner}", "tmpfs")
    if done.returncode:
        pytest.skip(f"this machine mounts no file system for us: {done.stderr.strip()}")
    try:
        yield lambda more: mount("-o", f"remount,size={more}").check_returncode()
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def mounted_apart(directory: Path, size: str) -> Iterator[Path]:
    """A tmpfs for the time of the block, without any right to mount. Yields the path by which processes of this user
    reach it."""
    mount = f"mount -t tmpfs -o size={size} tmpfs '{directory}' && echo mounted && exec cat"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "mounted\n":
            pytest.skip(f"this machine mounts no file system for us: {holder.stderr.read().strip()}")
        try:
            yield Path(f"/proc/{holder.pid}/root{directory}")
        finally:
            # It ends with its input, and the name space with it.
            holder.stdin.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    directory = tmp_path / "small"
    directory.mkdir()
    if os.geteuid() == 0:
        with mounted(directory, "6m"):
            yield directory
    else:
        with mounted_apart(directory, "6m") as place:
            yield place


def fill(directory: Path, left: int) -> Path:
    """A file that leaves that many bytes of the file system free."""
    balloon = directory / _BALLOON
    with balloon.open("wb") as file:
        while (free := free_bytes(directory)) > left:
            file.write(bytes(min(65536, free - left)))
            file.flush()
    return balloon


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def files(directory: Path) -> set[str]:
    return {str(path) for path in directory.rglob("*") if path.is_file() and path.name != _BALLOON}


def await_referenced(directory: Path, mirror: Mirror, *tables: str) -> None:
    """Returns once every file is referenced and none is missing. Tasks that a pump abandons remove their files when
    they end."""
    await_true(lambda: files(directory) == referenced(mirror, *tables), 30, "what is there is what is referred to")


def last_retry(steps: Steps) -> tuple[str, str]:
    """Error and remedy of the pump's last retry."""
    error, remedy = (steps.details(Step.RETRYING, name)[-1] for name in ("error", "remedy"))
    return str(error), str(remedy)


def referenced(mirror: Mirror, *tables: str) -> set[str]:
    """Paths of all files that a table's snapshots name."""
    found: set[str] = set()
    for table in tables:
        lake = StaticTable.from_metadata(mirror.location(table))
        for snapshot in lake.metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(lake.io):
                found.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(lake.io, discard_deleted=False)
                found.update(entry.data_file.file_path for entry in entries)
        found.update(entry.metadata_file for entry in lake.metadata.metadata_log)
        found.add(mirror.location(table))
    return {path.removeprefix("file://") for path in found}


@pytest.fixture
def two(small: Path, database: Database, tasks: TaskRunner) -> Mirror:
    """Two live tables of a few rows, whose lake has 6 MB. The lake is created before the database and removed after
    it."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'before' FROM generate_series(1, 100) g",
        "INSERT INTO u SELECT g, 'before' FROM generate_series(1, 100) g",
    )
    mirror = Mirror.create(
        database, small.as_uri(), tasks, segment_bytes=300_000, reconnect_backoff_max=0.5, merge_bytes=0
    )
    mirror.register("t", "u")
    mirror.catch_up()
    return mirror


@pytest.mark.unverified("its storage has no room for a copy of the heap; it compares by itself")
@pytest.mark.parametrize("runs", ["tasks", pytest.param("runner", marks=pytest.mark.soak)])
def test_a_transaction_that_the_lake_has_no_room_for(
    two: Mirror, small: Path, request: pytest.FixtureRequest, runs: str
) -> None:
    """From Spark's workers, the error crosses two process boundaries."""
    two, database, steps = replace(two, runner=request.getfixturevalue(runs)), two.database, Steps()
    balloon = fill(small, 400_000)
    before, at_first, rows = files(small), two.frontier(), two.lake("public.t")
    with two.pumping(steps):
        with database.connect() as connection, connection.transaction():
            connection.execute("UPDATE u SET v = 'with it' WHERE id <= 50")
            connection.execute(
                "INSERT INTO t SELECT g, md5(g::text) || md5((-g)::text) FROM generate_series(1000, 25000) g"
            )
            connection.execute("DELETE FROM t WHERE id <= 50")
        await_true(lambda: steps.count(Step.RETRYING) >= 2, 60, "the pump has tried twice")
        error, remedy = last_retry(steps)
        assert "no space left to write" in error
        assert str(small) in error
        assert "make room" in remedy
        # Nothing of the transaction is visible, and its files do not keep the storage full.
        assert two.frontier() < database.lsn()
        assert (two.lake("public.t"), two.lake("public.u")) == (rows, two.lake("public.u"))
        assert "with it" not in str(two.lake("public.u"))
        assert two.acknowledged() <= two.frontier()
        await_true(lambda: files(small) == before, 30, "files of failed attempts are removed")
        balloon.unlink()
        two.await_frontier()
        two.assert_equal("public.t", "public.u")
    assert two.frontier() > at_first
    await_referenced(small, two, "public.t", "public.u")
    two.assert_sound()


@pytest.mark.further
def test_a_lake_that_gets_full_between_data_and_metadata(two: Mirror, small: Path) -> None:
    """Here a pump is started again, instead of one that continues."""
    database = two.database

    def take_the_rest(step: Step, _details: dict[str, object]) -> None:
        if step is Step.WRITTEN:
            # Some bytes are left: a write accepts a part of its data, and reports no error.
            fill(small, 6000)

    steps = Steps(take_the_rest)
    running = two.start(steps)
    database.execute(
        "INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1000, 1500) g",
        "UPDATE u SET v = 'changed' WHERE id < 20",
    )
    await_true(lambda: steps.count(Step.RETRYING), 60, "the pump could not publish")
    assert "no space left to write" in last_retry(steps)[0]
    running.stop()
    (small / _BALLOON).unlink()
    await_referenced(small, two, "public.t", "public.u")
    two.catch_up()
    two.assert_equal("public.t", "public.u")
    await_referenced(small, two, "public.t", "public.u")
    two.assert_sound()


def test_a_copy_that_the_lake_has_no_room_for(two: Mirror, small: Path) -> None:
    database, steps = two.database, Steps()
    database.execute(
        "CREATE TABLE w (id int PRIMARY KEY, v text)",
        "INSERT INTO w SELECT g, md5(g::text) FROM generate_series(1, 40000) g",
    )
    balloon = fill(small, 300_000)
    with two.with_options(copy_chunk_bytes=1 << 20).pumping(steps):
        two.register("w")
        await_true(lambda: steps.count(Step.RETRYING) >= 2, 60, "the pump has tried twice")
        assert two.state("public.w") == "copying"
        balloon.unlink()
        two.await_live("public.w")
        two.await_frontier()
        two.assert_equal("public.t", "public.w")
    await_referenced(small, two, "public.t", "public.u", "public.w")
    two.assert_sound()


def test_what_a_write_that_fails_leaves(small: Path) -> None:
    storage = StorageOptions(fsync=False)
    fill(small, 40_000)
    with pytest.raises(StorageFull, match="No space left"):
        write_all([(f"{small.as_uri()}/{name}", bytes(30_000)) for name in ("a", "b")], storage)
    assert files(small) == set()
    with pytest.raises(StorageFull, match="No space left"), open_output(f"{small.as_uri()}/c", storage) as stream:
        stream.write(bytes(100_000))
    assert files(small) == set()


def test_sparks_own_files(small: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    own = SparkTaskRunner(spark, 1)
    monkeypatch.setattr(spark.sparkContext, "_temp_dir", str(small))
    balloon = fill(small, 0)
    with pytest.raises(StorageFull, match="Spark's own files") as failure:
        own.submit(len, bytes(1_000_000)).result(60)
    assert "make room" in failure.value.remedy
    balloon.unlink()
    assert own.submit(len, bytes(1_000_000)).result(60) == 1_000_000


@pytest.mark.further
def test_a_server_that_has_no_room_to_decode(database: Database, warehouse: str, tasks: TaskRunner) -> None:
    """It keeps a large transaction's changes in files of the slot until it sees the commit."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'",
    )
    mirror = Mirror.create(database, warehouse, tasks, reconnect_backoff_max=0.5)
    mirror.register("t")
    mirror.catch_up()
    ((data,),) = database.rows("SHOW data_directory")
    slot = Path(data) / "pg_replslot" / mirror.settings.slot
    state, owner = (slot / "state").read_bytes(), slot.stat()
    steps = Steps()
    with mounted(slot, "1m", owner=f",mode=0700,uid={owner.st_uid},gid={owner.st_gid}") as resize:
        (slot / "state").write_bytes(state)
        os.chown(slot / "state", owner.st_uid, owner.st_gid)
        database.execute("INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 30000) g")
        running = mirror.start(steps)
        await_true(lambda: steps.count(Step.RETRYING) >= 2, 60, "the server has failed twice")
        error, remedy = last_retry(steps)
        assert "No space left" in error
        assert "free disk space" in remedy
        resize("64m")
        mirror.await_frontier()
        running.stop()
        mirror.assert_equal("public.t")
        await_true(lambda: not database.rows("SELECT FROM pg_replication_slots WHERE active"), 30, "nobody streams")
