"""The object store fails as object stores do, while the pump copies and streams. Nothing is lost or doubled.

`make test` meets every fault once, on one mirror; `make soak` meets each by itself, more often and in more places. What
expired credentials do in `make test` is in test_storage_profiles.py.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import FileDamaged, LakeError
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.storage import discard, gathered_writes, list_files, read_bytes, write_all, write_bytes
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.profiles import store_profile
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from tests.support.remote_lake import RemoteLake, assert_equal
from tests.support.s3_faults import StorageFault
from tests.support.s3_storage import REGION, ObjectStore

pytestmark = pytest.mark.unverified("each test verifies by itself: the fixture has no access to the object store")

TABLES = ("public.a", "public.b")


def create_tables(mirror: Mirror) -> None:
    for table in TABLES:
        mirror.database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT g, 'copied' FROM generate_series(1, 1000) g",
        )


def change(mirror: Mirror, start: int) -> None:
    """A few transactions, each of which writes to both tables."""
    for step in range(start, start + 4):
        mirror.database.execute(
            f"INSERT INTO public.a SELECT g, 'streamed' FROM generate_series({2000 + step * 10}, {2009 + step * 10}) g;"
            f" UPDATE public.b SET v = 'changed {step}' WHERE id % 50 = {step}; DELETE FROM public.a WHERE id = {step}"
        )


def data_files(remote: RemoteLake, mirror: Mirror) -> int:
    """How many there are in the store, whether or not the lake has them."""
    files = list_files(remote.warehouse, lake_storage(mirror.settings))
    return sum(file.location.endswith(".parquet") for file in files)


_PASSING = (
    (StorageFault.SLOW_DOWN, "PUT", ""),
    (StorageFault.SLOW_DOWN, "GET", ""),
    (StorageFault.RESET, "PUT", ""),
    (StorageFault.LOST_ANSWER, "PUT", ""),
    # The answer to the request that makes the object of its parts.
    (StorageFault.LOST_ANSWER, "POST", r"\?uploadId="),
    (StorageFault.CUT_OFF, "GET", ""),
    (StorageFault.SHORT, "GET", ""),
    (StorageFault.SLOW, "GET", ""),
)
"""Faults, the requests that meet them, and a regular expression for their path and query."""


def test_nothing_is_lost_or_doubled_by_any_fault(remote: RemoteLake) -> None:
    """All that pass, in the copies of tables and then one by one in the stream; then a store that is away for longer;
    then files that are there though the pump has been told nothing of it, and that cannot be removed."""
    mirror = remote.mirror()
    create_tables(mirror)
    # A command fails instead, and can be repeated.
    mirror.register(*TABLES)
    faulty, steps = remote.faulty, Steps()
    met = [[faulty.arm(fault, method, path=path, times=1)] for fault, method, path in _PASSING]
    with mirror.pumping(steps):
        mirror.await_live(*TABLES)
        for number, (fault, method, path) in enumerate(_PASSING):
            faulty.disarm()
            met[number].append(faulty.arm(fault, method, path=path, times=1))
            change(mirror, 1 + 4 * number)
            mirror.await_frontier()
        assert [what for what, armed in zip(_PASSING, met, strict=True) if not any(each.met for each in armed)] == []
        faulty.disarm()
        before, tried = mirror.frontier(), steps.count(Step.RETRYING)
        away = faulty.arm(StorageFault.SLOW_DOWN, "PUT", "POST")
        change(mirror, 40)
        await_true(lambda: steps.count(Step.RETRYING) > tried, 120, "the pump tries again")
        assert mirror.frontier() == before
        assert mirror.acknowledged() <= before
        files = data_files(remote, mirror)
        faulty.arm(StorageFault.SLOW_DOWN, "DELETE")
        faulty.arm(StorageFault.LOST_ANSWER, "POST", path=r"\.parquet\?uploadId=")
        away.left = 0
        await_true(lambda: data_files(remote, mirror) > files, 120, "a file of which the pump knows nothing")
        assert mirror.frontier() == before
        assert {mirror.state(table) for table in TABLES} == {"live"}
        faulty.disarm()
        mirror.await_frontier()
    assert_equal(mirror, *TABLES)


def test_objects_that_are_written_together(remote: RemoteLake) -> None:
    """They are there for who reads in the block, what is discarded stays away, and the block ends with what failed."""
    storage = lake_storage(remote.mirror().settings)
    files = [(f"{remote.warehouse}/together/{number}", b"%d" % number * 1000) for number in range(40)]
    with gathered_writes():
        write_all(files, storage)
        assert read_bytes(files[-1][0], storage) == files[-1][1]
        discard([location for location, _ in files[:10]], storage)
    there = {file.location for file in list_files(f"{remote.warehouse}/together", storage)}
    assert there == {location for location, _ in files[10:]}
    remote.faulty.arm(StorageFault.SLOW_DOWN, "PUT", path="together/never")
    others = [(f"{remote.warehouse}/together/{name}", b"x") for name in ("never", "other")]
    with pytest.raises(LakeError, match="never"), gathered_writes():
        write_all(others, storage)
    assert read_bytes(others[1][0], storage) == b"x"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "methods", "times"),
    [
        (StorageFault.SLOW_DOWN, (), 5),
        (StorageFault.RESET, (), 5),
        (StorageFault.LOST_ANSWER, ("PUT", "POST"), 5),
        (StorageFault.CUT_OFF, ("GET",), 4),
        (StorageFault.SHORT, ("GET",), 2),
        (StorageFault.SLOW, ("GET", "PUT"), 3),
    ],
    ids=lambda value: value.name if isinstance(value, StorageFault) else "",
)
def test_what_passes_is_repeated(remote: RemoteLake, fault: StorageFault, methods: tuple[str, ...], times: int) -> None:
    """In the copies of tables, and then in the stream."""
    mirror = remote.mirror()
    create_tables(mirror)
    # A command fails instead, and can be repeated.
    mirror.register(*TABLES)
    steps = Steps()
    copying = remote.faulty.arm(fault, *methods, times=times)
    with mirror.pumping(steps):
        mirror.await_live(*TABLES)
        remote.faulty.disarm()
        streaming = remote.faulty.arm(fault, *methods, times=times)
        change(mirror, 1)
        mirror.await_frontier()
        remote.faulty.disarm()
        change(mirror, 5)
        mirror.await_frontier()
    assert copying.met or streaming.met, steps.occurrences
    assert {mirror.state(table) for table in TABLES} == {"live"}
    assert_equal(mirror, *TABLES)


@pytest.mark.soak
def test_the_frontier_stands_still_while_the_storage_is_away(remote: RemoteLake) -> None:
    mirror = remote.mirror()
    create_tables(mirror)
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register(*TABLES)
        mirror.await_live(*TABLES)
        mirror.await_frontier()
        before = mirror.frontier()
        remote.faulty.arm(StorageFault.SLOW_DOWN, "PUT", "POST")
        change(mirror, 1)
        await_true(lambda: steps.count(Step.RETRYING), 120, "the pump tries again")
        assert mirror.frontier() == before
        assert mirror.acknowledged() <= before
        assert {mirror.state(table) for table in TABLES} == {"live"}
        remote.faulty.disarm()
        mirror.await_frontier()
    assert_equal(mirror, *TABLES)


@pytest.mark.soak
def test_expired_credentials_are_renewed_in_their_file(
    remote: RemoteLake, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a storage profile. The error names the file, and no restart is needed."""
    (first, secret), (second, renewed), *_ = store.secrets.items()
    file = tmp_path / "archive.json"
    file.write_text(json.dumps({"access_key": first, "secret_key": secret}))
    monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE_FILE", str(file))
    mirror = Mirror.create(remote.database, (tmp_path / "lake").as_uri(), remote.tasks, reconnect_backoff_max=0.5)
    create_tables(mirror)
    options = {"s3.endpoint": remote.faulty.endpoint, "s3.region": REGION}
    with mirror.database.connect() as connection:
        store_profile(connection, StorageProfile("archive", remote.warehouse, options, "archive"))
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("public.a")
        mirror.register("public.b", profile="archive")
        mirror.await_live(*TABLES)
        mirror.await_frontier()
        before = mirror.frontier()
        remote.faulty.expired = {first}
        change(mirror, 1)
        await_true(lambda: steps.count(Step.RETRYING) >= 2, 60, "the pump tries again")
        assert mirror.frontier() == before
        (remedy,) = set(steps.details(Step.RETRYING, "remedy"))
        assert f"storage profile archive: renew the credentials in {file}" in remedy
        # Wrong ones, which the store itself refuses, are no better.
        file.write_text(json.dumps({"access_key": "key-unknown", "secret_key": secret}))
        tried = steps.count(Step.RETRYING)
        await_true(lambda: steps.count(Step.RETRYING) >= tried + 2, 60, "the pump tries again")
        assert "key-unknown" in remote.faulty.keys
        assert mirror.frontier() == before
        file.write_text(json.dumps({"access_key": second, "secret_key": renewed}))
        mirror.await_frontier()
    assert secret not in str(steps.occurrences)
    assert mirror.location("public.a").startswith("file:")
    assert mirror.location("public.b").startswith(remote.warehouse)
    assert_equal(mirror, *TABLES)


def test_an_answer_that_is_cut_off_is_no_damaged_file(remote: RemoteLake) -> None:
    """A table would fail for a damaged file, and have to be copied again."""
    mirror = remote.mirror()
    storage = lake_storage(mirror.settings)
    location = f"{remote.warehouse}/probe/rows.parquet"
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": [f"value {number}" for number in range(20_000)]}), sink, compression="none")
    content = sink.getvalue().to_pybytes()
    write_bytes(location, content, storage)

    def rows() -> int:
        with open_parquet(location, storage) as file:
            return int(file.read().num_rows)

    assert rows() == 20_000
    for fault in (StorageFault.SHORT, StorageFault.CUT_OFF):
        armed = remote.faulty.arm(fault, "GET", path="rows.parquet", times=1)
        with suppress(LakeError):
            # FileDamaged is a LakeError too.
            try:
                assert rows() == 20_000
            except FileDamaged as error:
                raise AssertionError from error
        assert armed.met
        armed = remote.faulty.arm(fault, "GET", path="rows.parquet", times=1)
        # What a short answer leaves of the memory must not happen to be the right content, from a read before.
        used = [bytes([7]) * len(content) for _ in range(8)]
        del used
        assert read_bytes(location, storage) == content
        assert armed.met
    write_bytes(location, content[:100_000] + b"\0" * 100_000 + content[200_000:-8], storage)
    with pytest.raises(FileDamaged):
        rows()


@pytest.mark.soak
def test_files_whose_answer_was_lost_are_not_in_the_lake(remote: RemoteLake) -> None:
    """A file may be there though nobody knows: written again under another name, its rows must not count twice."""
    mirror = remote.mirror()
    create_tables(mirror)
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register(*TABLES)
        mirror.await_live(*TABLES)
        mirror.await_frontier()
        before = data_files(remote, mirror)
        # Those of the batch, and nothing can be removed.
        remote.faulty.arm(StorageFault.LOST_ANSWER, "POST", path=r"\.parquet\?uploadId=")
        remote.faulty.arm(StorageFault.SLOW_DOWN, "DELETE")
        change(mirror, 1)
        await_true(lambda: steps.count(Step.RETRYING) >= 2, 120, "the pump tries again")
        assert data_files(remote, mirror) > before
        remote.faulty.disarm()
        mirror.await_frontier()
    assert_equal(mirror, *TABLES)
