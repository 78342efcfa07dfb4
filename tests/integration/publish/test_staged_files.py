"""Files that were written for a commit that then failed: none is left, whatever ended it, and the next commit works."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.lake.commit import archive_branch as cold
from mirror_pump.lake.storage import StagedFiles, StorageOptions, write_bytes
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from tests.support.events_table import RetentionTables, delete, upsert

pytestmark = pytest.mark.further


def _files(mirror: Mirror) -> set[Path]:
    """Files of the table except those in its directory `seam`, under whatever name that has."""
    (location,) = mirror.database.rows("SELECT location FROM modak.mirror_tables")
    root = Path(location[0].removeprefix("file://"))
    return {path for path in root.rglob("*") if path.is_file() and "seam" not in (path.name, path.parent.name[-4:])}


def _correct(database: Database, value: str) -> None:
    """An existing row below the cut-line, a new one and an absent one: positions, rows, and the deletes that the last
    one causes."""
    with database.connect(autocommit=False) as connection:
        upsert(connection, 4, 2, value)
        upsert(connection, 5, 1, value)
        delete(connection, 7, 1)


@pytest.mark.parametrize("index_memory", [pytest.param(0, marks=pytest.mark.soak), 1 << 24])
def test_nothing_is_left_of_a_commit_whose_branch_cannot_be_written(
    retention_tables: RetentionTables, database: Database, index_memory: int
) -> None:
    """The commit to `main` has been staged by then; with and without a key index."""
    events = retention_tables.manual(
        partitions=2,
        fold_age=0.05,
        index_memory=index_memory,
        convert_age=3600,
        merge_bytes=0,
        reconnect_backoff_max=0.1,
    )
    mirror = events.mirror
    left: list[set[Path]] = []
    steps = Steps(on=lambda step, _: left.append(_files(mirror)) if step is Step.RETRYING else None)
    with mirror.pumping(steps) as running:
        mirror.await_live("public.events")
        events.advance(running)
        _correct(database, "before")
        await_true(lambda: steps.count(Step.FOLDED), 30, "a fold")
        (location,) = database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")
        directory = Path(location[0].removeprefix("file://")).parent
        before = _files(mirror)
        # It is not a directory, so not even root can write there.
        aside = directory.rename(directory.with_name("former-seam"))
        directory.touch()
        left.clear()
        _correct(database, "meanwhile")
        await_true(lambda: len(left) >= 2, 30, "two tries")
        tried = list(left)
        directory.unlink()
        aside.rename(directory)
        folds = steps.count(Step.FOLDED)
        await_true(lambda: steps.count(Step.FOLDED) > folds, 30, "the fold works")
        for after in tried:
            assert after == before
        events.assert_exact()


def test_nothing_is_left_whatever_was_raised(
    retention_tables: RetentionTables, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = retention_tables.manual(partitions=2, fold_age=0.05, merge_bytes=0)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
    before = _files(mirror)
    _correct(database, "meanwhile")

    def fail(*_: object) -> object:
        raise RuntimeError("nobody expects this")

    with monkeypatch.context() as patch:
        patch.setattr(cold, "seam_metadata", fail)
        with pytest.raises(RuntimeError, match="nobody expects this"):
            mirror.start().join()
    assert _files(mirror) == before
    with mirror.pumping() as running:
        await_true(lambda: running.steps.count(Step.FOLDED), 30, "the fold works")
        events.assert_exact()


def test_staged_files_go_with_whatever_ends_their_block(tmp_path: Path) -> None:
    storage = StorageOptions(fsync=False)

    def write(written: StagedFiles, name: str) -> Path:
        location = tmp_path / name
        write_bytes(location.as_uri(), b"content", storage)
        written.add(location.as_uri())
        return location

    with StagedFiles(storage) as kept:
        path = write(kept, "kept")
    assert path.exists()
    assert kept.locations == (path.as_uri(),)
    paths: list[Path] = []

    def fail() -> None:
        with StagedFiles(storage) as written:
            paths.extend(write(written, name) for name in ("one", "other"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(paths) == 2
    assert not any(path.exists() for path in paths)
