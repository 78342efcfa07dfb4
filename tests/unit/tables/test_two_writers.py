"""Two writers of one file name, such as that of a hint: a reader sees one of the two contents, whoever was first, and
neither meets an error or takes the other's file away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from mirror_pump.errors import LakeError
from mirror_pump.lake.storage import open_output, read_bytes, write_bytes
from mirror_pump.tables import StorageOptions
from mirror_pump.tables.catalogs.lake_catalog import TableIdentifier
from mirror_pump.tables.catalogs.path_catalog import PathCatalog, read_hint, write_hint

STORAGE = StorageOptions(fsync=False)
_ROUNDS = 200
_CONTENTS = (b"a" * 10_000, b"b" * 10_000)


def _streamed(location: str, content: bytes, storage: StorageOptions) -> None:
    with open_output(location, storage) as sink:
        sink.write(content)


@pytest.mark.parametrize("write", [write_bytes, _streamed])
def test_threads(tmp_path: Path, write: Callable[[str, bytes, StorageOptions], None]) -> None:
    barrier = Barrier(2)

    def run(content: bytes) -> None:
        for number in range(_ROUNDS):
            location = f"{tmp_path.as_uri()}/{number}"
            barrier.wait(60)
            write(location, content, STORAGE)
            # Both have written, and neither has begun the next.
            barrier.wait(60)
            assert read_bytes(location, STORAGE) in _CONTENTS

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(run, content) for content in _CONTENTS]:
            try:
                future.result()
            except BaseException:
                barrier.abort()
                raise
    assert len(list(tmp_path.iterdir())) == _ROUNDS, "no temporary file is left"


_WRITER = """
import sys
from mirror_pump.lake.storage import StorageOptions, write_bytes
for line in sys.stdin:
    write_bytes(line.strip(), b"b" * 10_000, StorageOptions(fsync=False))
"""


def test_processes(tmp_path: Path) -> None:
    location = f"{tmp_path.as_uri()}/hint"
    with subprocess.Popen([sys.executable, "-c", _WRITER], stdin=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        other.stdin.write(f"{location}\n" * 3000)
        other.stdin.close()
        while other.poll() is None:
            write_bytes(location, _CONTENTS[0], STORAGE)
            assert read_bytes(location, STORAGE) in _CONTENTS
        assert other.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["hint"]


_FULL_DISK = """
import resource, signal, sys
from mirror_pump.errors import LakeError
from mirror_pump.lake.storage import StorageOptions, write_bytes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_bytes(sys.argv[1], b"b" * 10_000, StorageOptions(fsync=False))
except LakeError:
    sys.exit(3)
"""


def test_a_writer_that_fails_leaves_the_file_of_the_other(tmp_path: Path) -> None:
    location = f"{tmp_path.as_uri()}/hint"
    write_bytes(location, _CONTENTS[0], STORAGE)
    assert subprocess.run([sys.executable, "-c", _FULL_DISK, location], check=False).returncode == 3
    assert read_bytes(location, STORAGE) == _CONTENTS[0]
    assert [path.name for path in tmp_path.iterdir()] == ["hint"]


def test_hints_and_namespaces_of_a_path_catalog(tmp_path: Path) -> None:
    table = TableIdentifier("a", "b")
    catalogs = [PathCatalog(tmp_path.as_uri(), STORAGE) for _ in range(2)]
    barrier = Barrier(2)

    def run(writer: int) -> None:
        for number in range(1, 50):
            barrier.wait(60)
            write_hint(tmp_path.as_uri(), table, number, STORAGE)
            catalogs[writer].create_namespace(f"n{number}")
            barrier.wait(60)
            assert read_hint(tmp_path.as_uri(), table, STORAGE) == number
            assert f"n{number}" in catalogs[writer].namespaces()

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(run, writer) for writer in range(2)]:
            try:
                future.result()
            except BaseException:
                barrier.abort()
                raise


def test_a_write_that_cannot_work_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LakeError, match="cannot write"):
        write_bytes(f"{tmp_path.as_uri()}/file/below", b"", STORAGE)
