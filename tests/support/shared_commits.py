"""Random commits of several writers to one table, what each writer knows of its own, and what the table must have then.

Writers are processes (or threads, for a catalog in memory). A process may be killed at a step of its commits.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from mirror_pump.tables.catalogs.lake_catalog import LakeCatalog
from mirror_pump.tables.table.table import Table
from mirror_pump.tables.table.table_errors import ConflictingCommit
from tests.support.catalog_kinds import NO_TURNS, CatalogPlace, file_of, files_at

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.shared_commits", "psycopg_binary"])
_SECONDS = 120
"""For one writer."""
WRITER = "test.writer"
"""Summary entry with a commit's name."""

STEPS = frozenset(
    {"open", "write", "fsync", "link", "replace", "unlink", "rename", "mkdir", "execute", "executescript", "commit"}
)
"""Functions at whose calls and returns a writer can be killed: those that change what others see."""


@dataclass(frozen=True)
class Round:
    """What each writer does."""

    place: CatalogPlace
    table: str
    commits: int
    seed: int = 0


@dataclass(frozen=True)
class TriedCommit:
    """A commit as its writer knows it."""

    name: str
    """Unique, in the snapshot's summary."""
    removed: tuple[str, ...]
    added: tuple[str, ...]
    landed: bool
    """False if somebody else had removed the file first."""


def commit_at_random(work: Round, writers: int, shared: LakeCatalog | None = None) -> list[TriedCommit]:
    """The commits of all writers, which work at the same time. `shared`: in threads, with this catalog."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the commits: {seed}")
    rounds = [Round(work.place, work.table, work.commits, seed + number) for number in range(writers)]
    if shared is not None:
        with ThreadPoolExecutor(writers) as pool:
            return [tried for found in pool.map(lambda each: _work(each, shared), rounds) for tried in found]
    with ThreadPoolExecutor(writers) as pool:
        return [tried for found in pool.map(_in_process, rounds) for tried in found]


def replayed(table: Table, done: Sequence[TriedCommit]) -> frozenset[str]:
    """The files that the table must have. Fails unless its history has each commit that landed once, and each of its
    snapshots the files that it had then."""
    landed = {tried.name: tried for tried in done if tried.landed}
    history = table.history()[::-1]
    names = [name for snapshot in history if (name := snapshot.summary.get(WRITER)) is not None]
    assert sorted(names) == sorted(landed), "commits were lost or doubled"
    files: frozenset[str] = frozenset()
    for place, snapshot in enumerate(history):
        name = snapshot.summary.get(WRITER)
        if name is None:
            files = files_at(table, snapshot)
            continue
        tried = landed[name]
        assert files.issuperset(tried.removed)
        files = files - frozenset(tried.removed) | frozenset(tried.added)
        # Each costs a read of all manifests of then.
        if place % 10 == 0 or place == len(history) - 1:
            assert files_at(table, snapshot) == files, f"snapshot {place} of {len(history)}"
    return files


def append_and_die(place: CatalogPlace, table: str, file: str, step: int | None) -> int | None:
    """Appends the file in another process that is killed at its step with this number, counted from 0. None if it was
    killed; else the number of steps that the commit had. `step` None: kills nobody."""
    ours, theirs = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_append, args=(place, table, file, step, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(_SECONDS), "the writer hangs"
    try:
        steps: int | None = ours.recv()
    except EOFError:
        steps = None
    process.join(_SECONDS)
    assert process.exitcode == (-signal.SIGKILL if steps is None else 0), f"the writer ended with {process.exitcode}"
    return steps


def _append(place: CatalogPlace, table: str, file: str, step: int | None, answer: Connection[Any, Any]) -> None:
    opened = Table.open(place.open(), table)
    steps = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal steps
        name = frame.f_code.co_name if event in ("call", "return") else getattr(argument, "__name__", "")
        if name in STEPS:
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1

    sys.setprofile(count)
    opened.commit_append([file])
    sys.setprofile(None)
    answer.send(steps)


def _in_process(work: Round) -> list[TriedCommit]:
    ours, theirs = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_report, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(_SECONDS), "a writer hangs"
    found: list[TriedCommit] = ours.recv()
    process.join(_SECONDS)
    return found


def _report(work: Round, answer: Connection[Any, Any]) -> None:
    answer.send(_work(work, work.place.open()))


def _work(work: Round, catalog: LakeCatalog) -> list[TriedCommit]:
    chance = random.Random(work.seed)
    table = Table.open(catalog, work.table, retry=NO_TURNS)
    done = []
    for number in range(work.commits):
        name = f"{work.seed}-{number}"
        added = tuple(file_of(table, number) for _ in range(chance.randint(1, 2)))
        removed: tuple[str, ...] = ()
        landed = True
        try:
            if chance.random() < 0.4:
                present = sorted(files_at(table.refresh()))
                removed = tuple(chance.sample(present, min(chance.randint(1, 2), len(present))))
                table.commit_overwrite(removed, added, {WRITER: name})
            else:
                table.commit_append(added, {WRITER: name})
        except ConflictingCommit:
            landed = False
        done.append(TriedCommit(name, removed, added, landed))
    return done
