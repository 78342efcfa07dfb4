"""Directories and logs in places where others can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mirror_pump.engine.spark_runtime.cache import cache_directory
from mirror_pump.ops.duckdb_connection import open_planner
from mirror_pump.runtime.private_files import append_privately, private_directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory for temporary files in which everybody may write."""
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


def test_the_directory_is_the_users_alone_and_is_found_again(shared: Path) -> None:
    path = private_directory()
    assert (path, mode(path)) == (shared / f"mirror-pump-{os.getuid()}", 0o700)
    assert private_directory() == path


def test_a_directory_of_the_user_that_others_can_read_is_closed(shared: Path) -> None:
    (shared / f"mirror-pump-{os.getuid()}").mkdir(mode=0o755)
    assert mode(private_directory()) == 0o700


@pytest.mark.parametrize("kind", ["link", "file", "foreign"])
def test_what_somebody_else_put_under_its_name_is_not_used(shared: Path, tmp_path: Path, kind: str) -> None:
    trap = shared / f"mirror-pump-{os.getuid()}"
    (target := tmp_path / "target").mkdir()
    if kind == "link":
        trap.symlink_to(target)
    elif kind == "file":
        trap.touch()
    elif os.getuid() == 0:
        trap.mkdir()
        os.chown(trap, 12345, 12345)
    else:
        pytest.skip("only root can make a directory of another user")
    path = private_directory()
    assert path.parent == shared
    assert path != trap
    assert mode(path) == 0o700
    assert list(target.iterdir()) == []


def test_a_log_follows_no_link_and_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    log = tmp_path / "new" / "spark.log"
    for text in (b"first", b"second"):
        with append_privately(log) as descriptor:
            os.write(descriptor, text)
    assert (log.read_bytes(), mode(log), mode(log.parent)) == (b"firstsecond", 0o600, 0o700)
    (target := tmp_path / "target").write_text("mine")
    (link := tmp_path / "link.log").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"), append_privately(link):
        pass
    assert target.read_text() == "mine"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a directory of another user")
def test_a_cache_that_others_can_change_is_not_used(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    """Programs in it are executed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    assert cache_directory() == shared / "mirror-pump"
    os.chown(shared / "mirror-pump", 12345, 12345)
    assert mode(cache_directory()) == 0o700
    os.chown(shared / "mirror-pump", 0, 0)
    (shared / "mirror-pump").chmod(0o777)
    assert cache_directory() != shared / "mirror-pump"


def test_rows_that_duckdb_puts_on_disk_are_in_a_private_directory(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_planner() as connection:
        connection.execute("SET memory_limit = '20MB'; SET threads = 1")
        connection.execute("CREATE TABLE t AS SELECT md5(i::text) v, md5((i + 1)::text) w FROM range(500_000) r(i)")
        spilled = [path for path in tmp_path.rglob("*.tmp") if path.is_file()]
        assert spilled
        assert all(path.is_relative_to(private_directory()) for path in spilled)
    assert list(private_directory().iterdir()) == []
