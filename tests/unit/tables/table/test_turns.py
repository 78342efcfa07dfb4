"""Writers of one machine take turns at a table, and commit all the same where they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.runtime.directory_lock import _try_lock
from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog
from mirror_pump.tables.table.table import LAKE_RETRIES, Table, turn
from tests.support.catalog_kinds import ROWS, file_of, files_at
from tests.support.counting_catalog import CountingCatalog

_PATIENT = 240.0
"""Seconds."""


def test_one_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []

    def enter(number: int) -> None:
        for _ in range(25):
            with turn(tmp_path.as_uri(), _PATIENT):
                inside.append(number)
                assert inside == [number]
                inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(4)))


def test_writers_of_one_machine_do_not_meet(tmp_path: Path) -> None:
    storage = StorageOptions(fsync=False)
    catalogs = [CountingCatalog(tmp_path / "catalog.db", tmp_path.as_uri(), storage) for _ in range(4)]
    table = Table.create(catalogs[0], "a.b", ROWS)
    files = [[file_of(table, number) for number in range(8)] for _ in catalogs]
    begin = threading.Barrier(len(catalogs))

    def commit(catalog: CountingCatalog, own: Sequence[str]) -> None:
        opened = Table.open(catalog, "a.b", retry=replace(LAKE_RETRIES, longest_turn=_PATIENT))
        begin.wait(60)
        for file in own:
            opened.commit_append([file])

    with ThreadPoolExecutor(len(catalogs)) as pool:
        list(pool.map(commit, catalogs, files))
    assert files_at(table.refresh()) == {file for own in files for file in own}
    assert sum(catalog.conflicts for catalog in catalogs) == 0


def test_a_writer_that_hangs_keeps_nobody_from_committing(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db", tmp_path.as_uri(), StorageOptions(fsync=False))
    table = Table.create(catalog, "a.b", ROWS, retry=replace(LAKE_RETRIES, longest_turn=0.02))
    file = file_of(table, 1)
    with turn(f"{table.location}/metadata", _PATIENT):
        table.commit_append([file])
    assert files_at(table) == {file}


def test_a_process_that_dies_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys; from mirror_pump.tables.table.table import turn\n"
        "with turn(sys.argv[1], 240.0): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path.as_uri()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        descriptor = os.open(tmp_path, os.O_RDONLY)
        assert not _try_lock(descriptor), "the other process has no lock"
        process.kill()
        process.wait()
        assert _try_lock(descriptor)
        os.close(descriptor)


def test_a_process_that_was_forked_meanwhile_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = os.open

    def copying(*given: object) -> int:
        # What a fork does to a descriptor.
        descriptor = real(*given)  # type: ignore[arg-type]
        opened.append(os.dup(descriptor))
        return descriptor

    monkeypatch.setattr(os, "open", copying)
    with turn(tmp_path.as_uri(), _PATIENT):
        pass
    descriptor = real(tmp_path, os.O_RDONLY)
    assert _try_lock(descriptor)
    for each in (descriptor, *opened):
        os.close(each)


@pytest.mark.parametrize("location", ["s3://bucket/table/metadata", "file:///nowhere/at/all"])
def test_where_there_are_no_locks_nobody_waits(location: str) -> None:
    with turn(location, _PATIENT), turn(location, _PATIENT):
        pass
