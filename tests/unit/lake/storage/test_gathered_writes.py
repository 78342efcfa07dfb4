"""Files that are made durable together: they are there for who reads, and what is discarded is gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from shutil import rmtree
from threading import Event, Thread
from typing import Any

import pytest

from mirror_pump.errors import LakeError
from mirror_pump.lake.storage import (
    StorageOptions,
    begin_writes,
    discard,
    exists,
    gathered_writes,
    list_files,
    local_path,
    open_output,
    read_bytes,
    write_all,
)

_STORAGE = StorageOptions(fsync=True, make_directories=True)


def _files(directory: Path, *numbers: int) -> list[tuple[str, bytes]]:
    return [(f"{directory.as_uri()}/{number % 3}/{number}", b"%d" % number * number) for number in numbers]


def _write_and_lose(file: tuple[str, bytes]) -> None:
    """Writes a file, which is gone before the block ends."""
    write_all([file], _STORAGE)
    path = local_path(file[0])
    assert path is not None
    path.unlink()


def test_files_are_readable_in_the_block_and_whole_after_it(tmp_path: Path) -> None:
    files = _files(tmp_path, *range(30))
    with gathered_writes():
        write_all(files[:10], _STORAGE)
        assert [read_bytes(location, _STORAGE) for location, _ in files[:10]] == [content for _, content in files[:10]]
        write_all(files[10:], _STORAGE)
    assert {file.location for file in list_files(tmp_path.as_uri(), _STORAGE)} == {location for location, _ in files}
    assert [read_bytes(location, _STORAGE) for location, _ in files] == [content for _, content in files]


def test_the_block_ends_with_a_flush_of_each_file_that_was_not_discarded(tmp_path: Path) -> None:
    kept, discarded = _files(tmp_path, 1, 2)
    with gathered_writes():
        write_all([kept, discarded], _STORAGE)
        discard([discarded[0]], _STORAGE)
    assert (exists(kept[0], _STORAGE), exists(discarded[0], _STORAGE)) == (True, False)
    with pytest.raises(LakeError, match="cannot write"), gathered_writes():
        _write_and_lose(_files(tmp_path, 3)[0])


def test_a_writer_that_fails_leaves_nothing_and_the_others_go_on(tmp_path: Path) -> None:
    first, second, third = _files(tmp_path, 1, 2, 3)
    (tmp_path / "2").write_text("no directory")
    with gathered_writes():
        write_all([first], _STORAGE)
        with pytest.raises(LakeError):
            write_all([third, second], _STORAGE)
    assert {file.location for file in list_files(tmp_path.as_uri(), _STORAGE)} == {
        first[0],
        (tmp_path / "2").as_uri(),
    }


def test_other_threads_write_as_ever(tmp_path: Path) -> None:
    ((location, content),) = _files(tmp_path, 5)

    with gathered_writes():
        thread = Thread(target=_write_and_lose, args=[(location, content)])
        thread.start()
        thread.join()


def test_a_streamed_file_is_flushed_at_the_end_of_the_block_too(tmp_path: Path) -> None:
    location = (tmp_path / "streamed").as_uri()
    missing: set[str] = set()
    with gathered_writes(missing):
        with open_output(location, _STORAGE) as stream:
            stream.write(b"whole")
        assert read_bytes(location, _STORAGE) == b"whole"
        (tmp_path / "streamed").unlink()
    assert missing == {location}


def test_files_that_are_gone_by_the_end_are_named_and_the_others_are_there(tmp_path: Path) -> None:
    files = _files(tmp_path, *range(6))
    missing: set[str] = set()
    with gathered_writes(missing):
        write_all(files, _STORAGE)
        rmtree(tmp_path / "1")
        (tmp_path / "2" / "5").unlink()
    gone = {files[1][0], files[4][0], files[5][0]}
    assert missing == gone
    assert all(exists(location, _STORAGE) is (location not in gone) for location, _ in files)


def test_large_files_are_on_their_way_to_the_disk_before_the_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is flushed once, and what is discarded is gone."""
    flushed: list[str] = []
    arrived = Event()

    def fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        arrived.set()

    monkeypatch.setattr(os, "fsync", fsync)
    large, small, discarded = ((f"{tmp_path.as_uri()}/{name}", content) for name, content in _LARGE_AND_SMALL)
    with gathered_writes():
        assert begin_writes([large], _STORAGE) == ()
        assert arrived.wait(20)
        write_all([small, discarded], _STORAGE)
        assert read_bytes(large[0], _STORAGE) == large[1]
        discard([discarded[0]], _STORAGE)
        assert not exists(discarded[0], _STORAGE)
        assert "small" not in flushed
    assert sorted(name for name in flushed if name != tmp_path.name) == ["discarded", "large", "small"]
    assert flushed[-1] == tmp_path.name


_LARGE_AND_SMALL = (("large", bytes(1 << 20)), ("small", b"s"), ("discarded", bytes(1 << 20)))


def test_a_large_file_that_the_disk_refuses_fails_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small, _ = ((f"{tmp_path.as_uri()}/{name}", content) for name, content in _LARGE_AND_SMALL)
    refused: list[int] = []

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_size == len(large[1]):
            refused.append(descriptor)
            raise OSError(errno.EIO, "no such block")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(LakeError, match=r"cannot write .*large"), gathered_writes():
        write_all([large, small], _STORAGE)
    assert len(refused) == 1


def test_a_large_file_that_is_gone_before_its_flush_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    large = (f"{tmp_path.as_uri()}/d/large", bytes(1 << 20))
    gone, opened = Event(), os.open

    def open_late(path: str, flags: int, *arguments: Any, **options: Any) -> int:
        if flags == os.O_RDONLY and str(path).endswith("large"):
            assert gone.wait(20)
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", open_late)
    missing: set[str] = set()
    with gathered_writes(missing):
        write_all([large], _STORAGE)
        rmtree(tmp_path / "d")
        gone.set()
    assert missing == {large[0]}


def test_outside_of_a_block_files_wait_for_those_that_come_with_them(tmp_path: Path) -> None:
    files = _files(tmp_path, 1, 2)
    assert begin_writes(files, _STORAGE) == files
    assert not any(exists(location, _STORAGE) for location, _ in files)
