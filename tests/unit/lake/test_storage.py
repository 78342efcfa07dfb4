"""Storage: local files appear as a whole or not at all, and errors say what to do."""

from __future__ import annotations

import os
import pickle
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mirror_pump.errors import LakeError
from mirror_pump.lake.storage import (
    StorageOptions,
    delete,
    delete_tree,
    exists,
    join,
    list_files,
    local_path,
    open_input,
    open_output,
    read_bytes,
    write_all,
    write_bytes,
)

STORAGES = [StorageOptions(), StorageOptions(fsync=False)]


@pytest.mark.parametrize("storage", STORAGES)
def test_bytes_go_round_in_new_directories(tmp_path: Path, storage: StorageOptions) -> None:
    location = f"{tmp_path.as_uri()}/a/b c/ü.bin"
    location = location.replace("%20", " ")
    assert not exists(location, storage)
    write_bytes(location, b"one", storage)
    write_bytes(location, b"two", storage)
    assert exists(location, storage)
    assert read_bytes(location, storage) == b"two"
    with open_input(location, storage) as stream:
        stream.seek(1)
        assert stream.read() == b"wo"
    assert [path.name for path in (tmp_path / "a" / "b c").iterdir()] == ["ü.bin"]
    delete(location, storage)
    delete(location, storage)
    assert not exists(location, storage)


def test_several_files_at_once(tmp_path: Path) -> None:
    files = [(f"{tmp_path.as_uri()}/{n}", bytes([n])) for n in range(5)]
    write_all(files, StorageOptions())
    assert [read_bytes(location, StorageOptions()) for location, _ in files] == [content for _, content in files]


def test_a_stream_that_fails_leaves_nothing(tmp_path: Path) -> None:
    location = f"{tmp_path.as_uri()}/x"

    def fail() -> None:
        with open_output(location, StorageOptions()) as sink:
            sink.write(b"half")
            assert not exists(location, StorageOptions()), "not visible before it is whole"
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_stream_appears_when_it_ends(tmp_path: Path) -> None:
    location = f"{tmp_path.as_uri()}/deep/x"
    with open_output(location, StorageOptions()) as sink:
        sink.write(b"whole")
    assert read_bytes(location, StorageOptions()) == b"whole"


def test_a_tree_is_removed(tmp_path: Path) -> None:
    write_bytes(f"{tmp_path.as_uri()}/t/data/x", b"", StorageOptions())
    delete_tree(f"{tmp_path.as_uri()}/t", StorageOptions())
    delete_tree(f"{tmp_path.as_uri()}/t", StorageOptions())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("location", "path"),
    [("file:///a/b", "/a/b"), ("file:/a/b", "/a/b"), ("/a/b", "/a/b"), ("s3://a/b", None), ("file:///a%20b", "/a%20b")],
)
def test_local_paths(location: str, path: str | None) -> None:
    assert local_path(location) == (None if path is None else Path(path))


def test_errors_name_the_file_and_the_remedy(tmp_path: Path) -> None:
    missing = f"{tmp_path.as_uri()}/none"
    with pytest.raises(LakeError, match=r"cannot read .*none") as caught:
        read_bytes(missing, StorageOptions())
    assert caught.value.remedy
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LakeError, match="cannot write"):
        write_bytes(f"{tmp_path.as_uri()}/file/below", b"", StorageOptions())
    with pytest.raises(LakeError, match="is not a storage location"):
        read_bytes("relative/path", StorageOptions())
    with pytest.raises(LakeError, match="nosuch"):
        read_bytes("nosuch://a/b", StorageOptions())


def test_joining_needs_no_care_about_slashes() -> None:
    assert join("file:///a/", "b", "c") == join("file:///a", "b", "c") == "file:///a/b/c"


def test_options_travel_to_tasks() -> None:
    options = StorageOptions({"s3.endpoint": "http://127.0.0.1:1"}, fsync=False)
    assert pickle.loads(pickle.dumps(options)) == options


def test_files_are_listed_with_size_and_time(tmp_path: Path) -> None:
    root = tmp_path / "a b%20c"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "one").write_bytes(b"1")
    (root / "deep" / "er" / ".hidden.tmp").write_bytes(b"123")
    os.utime(root / "one", (1_700_000_000, 1_700_000_000))
    location = f"file://{root}"
    listed = {file.location: file for file in list_files(location, StorageOptions())}
    assert listed.keys() == {f"{location}/one", f"{location}/deep/er/.hidden.tmp"}
    assert (listed[f"{location}/one"].size_bytes, listed[f"{location}/one"].modified) == (1, 1_700_000_000)
    assert {file.location for file in list_files(location + "/", StorageOptions())} == listed.keys()
    assert list(list_files(f"{location}/nothing", StorageOptions())) == []


@pytest.mark.parametrize(
    "error", [BrokenPipeError("the reader is gone"), FileNotFoundError(2, "no such file", "other")]
)
def test_an_error_of_the_block_is_not_blamed_on_the_file(tmp_path: Path, error: OSError) -> None:
    location, storage = f"{tmp_path.as_uri()}/x", StorageOptions()
    write_bytes(location, b"content", storage)

    def fail(stream: AbstractContextManager[object]) -> None:
        with stream:
            raise error

    for opened in (open_input, open_output):
        with pytest.raises(type(error)) as raised:
            fail(opened(location, storage))
        assert raised.value is error
    assert read_bytes(location, storage) == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_an_error_of_the_stream_is(tmp_path: Path) -> None:
    location, storage = f"{tmp_path.as_uri()}/x", StorageOptions()
    write_bytes(location, b"content", storage)

    def fail() -> None:
        with open_input(location, storage) as source:
            # As a disk that fails: the descriptor means a directory now, which cannot be read.
            directory = os.open(tmp_path, os.O_RDONLY)
            os.dup2(directory, source.fileno())
            os.close(directory)
            source.read()

    with pytest.raises(LakeError, match=r"cannot read file:.*/x"):
        fail()
