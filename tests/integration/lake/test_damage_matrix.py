"""Every kind of file of the lake, damaged in every way: who says it, what goes on, and the printed remedy, pasted."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.verify.verification import VerifyReport, verify
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import QUICK, Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.damage import DamageKind
from tests.support.local_files import path_of

STORAGE = StorageOptions(fsync=False)
FEED_LOCATION = """
SELECT i.metadata_location FROM modak.change_feeds f
  JOIN modak.iceberg_tables i ON i.table_namespace = f.namespace AND i.table_name = f.name
  JOIN modak.tables t ON t.table_id = f.feed_id WHERE t.table_name = %s
"""


class LakeFileKind(Enum):
    """A kind of file of the lake."""

    METADATA = "metadata"
    LIST = "list"
    MANIFEST = "manifest"
    DATA = "data"
    DELETE = "delete"
    VECTOR = "vector"
    FEED_METADATA = "feed_metadata"
    FEED = "feed"
    MOMENT = "moment"

    @property
    def is_head(self) -> bool:
        """Whether a commit builds on it."""
        return self in (LakeFileKind.METADATA, LakeFileKind.LIST)

    @property
    def is_of_feed(self) -> bool:
        return self in (LakeFileKind.FEED, LakeFileKind.FEED_METADATA)

    @property
    def has_rows(self) -> bool:
        """Whether only who reads its rows notices that bytes changed."""
        return self in (LakeFileKind.DATA, LakeFileKind.DELETE, LakeFileKind.VECTOR, LakeFileKind.FEED)


@dataclass(frozen=True)
class DamagedFile:
    """A damaged file: of a table, of its feed, or of a moment that has the name."""

    kind: LakeFileKind
    damage: DamageKind

    @property
    def name(self) -> str:
        return f"{self.kind.value}_{self.damage.value}"

    @property
    def only_readers_notice(self) -> bool:
        return self.kind.has_rows and self.damage is DamageKind.FLIPPED


CELLS = [DamagedFile(kind, damage) for kind, damage in product(LakeFileKind, DamageKind)]
SOME = [
    DamagedFile(LakeFileKind.METADATA, DamageKind.CUT),
    DamagedFile(LakeFileKind.LIST, DamageKind.ANOTHER),
    DamagedFile(LakeFileKind.MANIFEST, DamageKind.EMPTY),
    DamagedFile(LakeFileKind.DATA, DamageKind.GONE),
    DamagedFile(LakeFileKind.DELETE, DamageKind.FLIPPED),
    DamagedFile(LakeFileKind.VECTOR, DamageKind.ANOTHER),
    DamagedFile(LakeFileKind.FEED_METADATA, DamageKind.EMPTY),
    DamagedFile(LakeFileKind.FEED, DamageKind.GONE),
    DamagedFile(LakeFileKind.MOMENT, DamageKind.FLIPPED),
]


class DamagedMirror:
    """A mirror with a table for each cell, and others whose files stay as they are."""

    def __init__(
        self, database: Database, warehouse: str, tasks: ThreadTaskRunner, cells: Sequence[DamagedFile]
    ) -> None:
        intervals = dict.fromkeys(("file_watch_interval", "lake_watch_interval", "lake_watch_interval_remote"), 0.1)
        watch = QUICK.model_copy(update={**intervals, "file_watch_share": 1.0})
        self.database = database
        self.cells = cells
        self.mirror = Mirror.create(database, warehouse, tasks, convert_age=3600, merge_bytes=0, limits=watch)
        self.tables = [cell.name for cell in cells if cell.kind is not LakeFileKind.MOMENT]
        self.vectors = [*(cell.name for cell in cells if cell.kind is LakeFileKind.VECTOR), "well_vector"]
        self.feeds = [*(cell.name for cell in cells if cell.kind.is_of_feed), "well_feed"]
        for table in ("well", "well_vector", "well_feed", "kept", *self.tables):
            rows = 300 if table.startswith("well") else 40
            database.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
                f"INSERT INTO {table} SELECT g, repeat('x', g % 50) FROM generate_series(1, {rows}) g",
            )

    def set_up(self, run: RunCommand) -> None:
        """All tables are live, with deletes, feeds with changes, and moments."""
        mirror = self.mirror
        with mirror.with_options(convert_age=0, convert_rows=1).pumping():
            mirror.register("kept")
            mirror.await_live("public.kept")
            for cell in self.cells:
                if cell.kind is LakeFileKind.MOMENT:
                    assert run("moment", "keep", cell.name).exit_code == 0
            mirror.register(*self.vectors, format_version=3)
            mirror.await_live(*map(_public, self.vectors))
            self._delete(self.vectors)
            await_true(lambda: all(_has_vectors(mirror.location(_public(table))) for table in self.vectors), 30, "them")
        with mirror.pumping():
            mirror.register(*self.feeds, feed=FeedOptions(FeedMode.KEYS))
            others = ["well", *(table for table in self.tables if table not in (*self.feeds, *self.vectors))]
            mirror.register(*others)
            mirror.await_live(*map(_public, (*self.feeds, *others)))
            self._delete([*self.feeds, *others])
            self.database.execute(*(f"INSERT INTO {table} VALUES (1000, 'new')" for table in self.feeds))
            mirror.await_frontier()

    def _delete(self, tables: Iterable[str]) -> None:
        """Others are deleted from the tables that stay well, so that their files are of another length."""
        self.database.execute(
            *(f"DELETE FROM {table} WHERE id < {150 if table.startswith('well') else 3}" for table in tables)
        )
        self.mirror.await_frontier()

    def damage(self) -> dict[str, str]:
        """Damages all files. Returns the name of each, by cell."""
        files = {cell.name: self._file(cell.kind, cell.name) for cell in self.cells}
        others = {cell.kind: self._another(cell.kind) for cell in self.cells}
        for cell in self.cells:
            cell.damage.apply(files[cell.name], others[cell.kind])
        return {name: path.name for name, path in files.items()}

    def _another(self, kind: LakeFileKind) -> Path:
        well = "well_vector" if kind is LakeFileKind.VECTOR else "well_feed" if kind.is_of_feed else "well"
        return self._file(LakeFileKind.METADATA if kind is LakeFileKind.MOMENT else kind, well)

    def _file(self, kind: LakeFileKind, name: str) -> Path:
        """A file of that kind, of the table, the feed of the table, or the moment of that name."""
        if kind is LakeFileKind.MOMENT:
            query = "SELECT metadata_location FROM modak.moment_tables WHERE name = %s"
            return path_of(self.database.rows(query, (name,))[0][0])
        location = self.mirror.location(_public(name))
        if kind.is_of_feed:
            location = self.database.rows(FEED_LOCATION, (name,))[0][0]
        lake = LakeTable.load(location, STORAGE)
        match kind:
            case LakeFileKind.METADATA | LakeFileKind.FEED_METADATA:
                return path_of(location)
            case LakeFileKind.LIST:
                assert lake.metadata.current_snapshot is not None
                return path_of(lake.metadata.current_snapshot.manifest_list)
            case LakeFileKind.MANIFEST:
                return path_of(next(manifest.path for manifest in lake.manifests if manifest.content == 0))
        deletes = kind in (LakeFileKind.DELETE, LakeFileKind.VECTOR)
        files = [file for listed in Listing(STORAGE).files(lake.manifests).values() for file in listed]
        chosen = [file for file in files if (file.content is not FileContent.DATA) is deletes and file.records]
        # That with the most rows: small files of two tables may have the same length.
        return path_of(max(chosen, key=lambda file: file.records).path)


def _public(table: str) -> str:
    return f"public.{table}"


def _has_vectors(location: str) -> bool:
    lake = LakeTable.load(location, STORAGE)
    files = [file for listed in Listing(STORAGE).files(lake.manifests).values() for file in listed]
    return any(file.vector is not None for file in files) and not any(file.equality_ids for file in files)


def _alerts(run: RunCommand) -> list[dict[str, Any]]:
    shown = run("status", "--json")
    assert shown.exit_code == 0, shown.output
    alerts: list[dict[str, Any]] = json.loads(shown.stdout)["alerts"]
    return alerts


def _about(alerts: Iterable[dict[str, Any]], file: str) -> str:
    """What alerts say of a file, with what to do."""
    return " ".join(f"{alert['message']} {alert['remedy']}" for alert in alerts if file in alert["message"])


def _problems(report: VerifyReport) -> str:
    problems = [
        *(table.problem for table in report.tables),
        *(feed.problem for feed in report.feeds),
        *(moment.problem for moment in report.moments),
    ]
    return "\n".join(problem for problem in problems if problem is not None)


def _commands(text: str) -> list[str]:
    """What a text tells to run."""
    return list(dict.fromkeys(re.findall("`mirror-pump ([^`]+)`", text)))


def _paste(run: RunCommand, text: str) -> None:
    """Runs the commands that a text tells to run, in their order."""
    assert _commands(text), text
    for command in _commands(text):
        result = run(*shlex.split(command))
        assert result.exit_code == 0, f"{command}: {result.output}"


def _check(damaged: DamagedMirror, run: RunCommand) -> None:
    mirror, cells = damaged.mirror, damaged.cells
    damaged.set_up(run)
    files = damaged.damage()

    # Without a pump, `status` reads metadata, and answers whatever it finds.
    alerts = _alerts(run)
    for cell in cells:
        assert bool(_about(alerts, files[cell.name])) is (cell.kind is LakeFileKind.METADATA), cell
    assert run("status").exit_code == 0
    report = verify(mirror.settings, replay_feeds=DamagedFile(LakeFileKind.FEED, DamageKind.FLIPPED) in cells)
    problems = _problems(report)
    for cell in cells:
        # The pump that verify has begun may have failed a table without metadata before.
        assert files[cell.name] in problems + mirror.error(_public(cell.name)), cell
    equal = {table.table: table.equal for table in report.tables}
    assert all(equal[_public(table)] for table in ("well", "well_vector", "well_feed", "kept"))

    with mirror.pumping():
        # A publish to each table, and to each feed.
        damaged.database.execute(*(f"UPDATE {table} SET v = 'on' WHERE id = 7" for table in (*damaged.tables, "well")))
        mirror.await_frontier()
        mirror.assert_equal("public.well")
        for cell in cells:
            if cell.kind is LakeFileKind.MANIFEST and cell.damage is DamageKind.GONE:
                continue
            if cell.kind is not LakeFileKind.MOMENT:
                expected = "failed" if cell.kind.is_head else "live"
                assert mirror.state(_public(cell.name)) == expected, cell
        noticed = [cell for cell in cells if not cell.only_readers_notice]

        def alerted() -> bool:
            alerts = _alerts(run)
            return all(_commands(_about(alerts, files[cell.name])) for cell in noticed)

        await_true(alerted, 60, "alerts of all files")
        alerts = _alerts(run)
        for cell in cells:
            lines = (line for line in problems.splitlines() if files[cell.name] in line)
            _paste(run, _about(alerts, files[cell.name]) or " ".join(lines))
        mirror.await_live(*map(_public, damaged.tables))
        mirror.await_frontier()

        def at_rest() -> bool:
            alerts = _alerts(run)
            return not any(_about(alerts, file) for file in files.values())

        await_true(at_rest, 60, "no alert is left")
    report = verify(mirror.settings, replay_feeds=True)
    assert report.equal, report


@pytest.mark.further
@pytest.mark.unverified("it ends with verify")
def test_a_file_of_each_kind_is_damaged(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = DamagedMirror(database, warehouse, tasks, SOME)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", damaged.mirror.settings.slot)
    _check(damaged, run)


@pytest.mark.further
@pytest.mark.unverified("it ends with verify")
def test_files_of_all_kinds_are_damaged_in_all_ways(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = DamagedMirror(database, warehouse, tasks, CELLS)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", damaged.mirror.settings.slot)
    _check(damaged, run)
