"""The look at all files goes on after an error of one table that no code expects, and so does `verify`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pump.errors import FileDamaged, FileMissing
from mirror_pump.lake.commit.presence import wrong_files
from mirror_pump.lake.commit.readable_files import DescriptionCheck
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.ops.verify.heap_copy import ChangedMeanwhile
from mirror_pump.ops.verify.pinned_tables import require_published
from mirror_pump.pipeline.missing_files import file_watch
from mirror_pump.pipeline.missing_files.damaged_files import recorded_damage
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import QUICK, Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

Wrong = Iterator[FileMissing | FileDamaged]


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror of two tables: `first` is looked at before `second`."""
    mirror = Mirror.create(database, warehouse, tasks)
    for table in ("first", "second"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    mirror.register("first", "second")
    mirror.catch_up()
    return mirror


@pytest.mark.further
@pytest.mark.unverified("files are moved away")
def test_tables_behind_one_with_an_unexpected_error_are_looked_at(
    mirror: Mirror, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(location: str, storage: StorageOptions) -> Wrong:
        if "/first" in location:
            raise ValueError("unexpected")
        return wrong_files(location, storage)

    monkeypatch.setattr(file_watch, "wrong_files", failing)
    (file,) = Path(warehouse.removeprefix("file://")).glob("public/second*/data/**/*.parquet")
    file.rename(file.with_suffix(".away"))
    watched = mirror.with_options(limits=QUICK.model_copy(update={"file_watch_interval": 0.1}))
    with watched.pumping(), mirror.database.session() as connection:
        await_true(lambda: recorded_damage(connection, mirror.settings.slot), 30, "the lost file was not recorded")


def test_verify_reports_an_unexpected_error_of_a_moment(
    mirror: Mirror, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(footers: DescriptionCheck, location: str) -> Wrong:
        raise ValueError("unexpected")

    assert run("moment", "keep", "june").exit_code == 0
    monkeypatch.setattr(DescriptionCheck, "wrong_files", failing)
    outcome = run("verify")
    assert outcome.exit_code == 1
    assert "moment june: moment june: an unexpected error: ValueError: unexpected" in outcome.output


def test_another_registration_is_no_damage(mirror: Mirror) -> None:
    with mirror.database.session() as connection:
        table = load_table(connection, resolve_name(connection, "first")[1])
        assert table is not None
        require_published(connection, table, StorageOptions())
        with pytest.raises(ChangedMeanwhile):
            require_published(connection, replace(table, start_lsn=Lsn(table.start_lsn + 1)), StorageOptions())
