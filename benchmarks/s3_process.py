"""The tests' S3 server as a process of its own, which tells its endpoint and ends with its stdin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.scene import ROOT
from tests.support.s3_server import s3_server


@contextmanager
def s3_process() -> Iterator[tuple[str, int]]:
    """Endpoint and process id, for the time of the block. Objects are kept in memory."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.s3_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.stdin.close()
            process.wait(30)


def main() -> None:
    with s3_server() as server:
        print(server.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
