"""Each kind of landing, to be killed, interrupted, refused or cut off at any step of it."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import pyarrow as pa

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.lake.commit.merged_manifests import merge_manifests
from mirror_pump.lake.document.next_metadata import with_properties
from mirror_pump.ops.moments.dropping import drop
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.ops.register.lake_partitions import LayoutOptions
from mirror_pump.ops.resync.layout_change import alter_layout
from mirror_pump.pipeline.landing import landing, published_tables, slot_lock, table_landing, written_files
from mirror_pump.pipeline.landing.table_landing import TableLanding
from mirror_pump.pipeline.session.pump import Pump
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.maintenance import read_tables
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.relations.partition_choices import parse_sort_by
from mirror_pump.tables.table.table import Table
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.foreign_writes import ForeignCatalog
from tests.support.interrupts import InterruptedLines, rebuilt

MODULES: Collection[ModuleType] = (landing, written_files, slot_lock, published_tables, table_landing)
"""Those of the room that each landing goes through."""
TABLES = ("public.a", "public.b")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["mirror_pump.pipeline.session.pump", "mirror_pump.testing.tasks", __name__])


@dataclass(frozen=True)
class LandingKind:
    """What lands on the tables of `two_tables`, again and again."""

    work: Callable[[Settings, int], object]
    """The landing with this number."""
    prepare: Callable[[Mirror, int], object] = lambda _mirror, _number: None
    """What has to be there before."""
    other_commits: int = 0
    """COMMITs of the work before that of the landing."""


def _publish(settings: Settings, _number: int) -> None:
    Pump(settings, runner=ThreadTaskRunner()).run(once=True)


def _insert(mirror: Mirror, number: int) -> None:
    row = {"v": 100 + number}
    with mirror.database.session(autocommit=False) as connection:
        connection.execute("INSERT INTO a VALUES (%(v)s)", row)
        connection.execute("INSERT INTO b VALUES (%(v)s)", row)
        connection.commit()


def commit_and_insert(mirror: Mirror, number: int) -> None:
    """Another engine adds a row that the heap does not have."""
    for name in TABLES:
        table = Table.open(ForeignCatalog(mirror.database.dsn), name)
        table.append(pa.table({"v": pa.array([-number], pa.int32())}))
    _insert(mirror, number)


def _alter(settings: Settings, number: int) -> None:
    order = parse_sort_by("v" if number % 2 else "v desc")
    alter_layout(settings, "a", LayoutOptions(sort_by=order), wait=False, on_progress=lambda _: None)


def _table(connection: PgConnection, settings: Settings, *, merges: bool) -> TableLanding:
    table = next(row for row in read_tables(connection, settings.slot) if (row.name.name == "a") is merges)
    return TableLanding(connection, settings.slot, table.table_id, table.start_lsn, table.name, lake_storage(settings))


def _merge(settings: Settings, _number: int) -> None:
    with connect(settings.require_dsn(), autocommit=True) as connection:
        table = _table(connection, settings, merges=True)
        merged = merge_manifests(table.load_current())
        assert merged is not None
        table.land_manifests(merged)


def _publish_more(mirror: Mirror, number: int) -> None:
    """So that there are manifests to merge."""
    _insert(mirror, number)
    mirror.catch_up()


def _set_property(settings: Settings, number: int) -> None:
    with connect(settings.require_dsn(), autocommit=True) as connection:
        table = _table(connection, settings, merges=False)
        table.land_metadata(
            lambda metadata, location, now_ms: with_properties(metadata, {"number": str(number)}, location, now_ms)
        )


KINDS: dict[str, LandingKind] = {
    "publish": LandingKind(_publish, _insert),
    "foreign commit": LandingKind(_publish, commit_and_insert),
    # It resolves the table's name in a transaction.
    "metadata change": LandingKind(_alter, other_commits=1),
    "merged manifests": LandingKind(_merge, _publish_more),
    "properties": LandingKind(_set_property),
    "moment keep": LandingKind(lambda settings, number: keep(settings, MomentOptions(f"kept{number}"))),
    "moment drop": LandingKind(
        lambda settings, number: drop(settings, f"kept{number}"),
        lambda mirror, number: keep(mirror.settings, MomentOptions(f"kept{number}")),
    ),
}

COMMANDS = tuple(kind for kind in KINDS if kind not in ("publish", "foreign commit"))
"""The kinds that programs land which are no pump."""


def killed_landing(mirror: Mirror, kind: str, number: int, at: int | None) -> int | None:
    """Lands in another process, which is killed before that line of the room. Returns how many lines it executed if it
    was not: None if it was killed."""
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(
        target=_killed, args=(mirror.settings.model_dump(mode="python"), kind, number, at, sender), daemon=True
    )
    process.start()
    sender.close()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), f"{kind} ended with {process.exitcode}"
    lines = None
    with suppress(EOFError):
        lines = receiver.recv()
    return lines


def _killed(settings: dict[str, Any], kind: str, number: int, at: int | None, sender: Connection) -> None:
    lines = InterruptedLines(MODULES, at, signal.SIGKILL)
    with lines.counted():
        lines.begin()
        KINDS[kind].work(rebuilt(settings), number)
        sys.settrace(None)
    sender.send(lines.lines)
