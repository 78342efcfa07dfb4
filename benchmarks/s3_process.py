"""The tests' S3 server as a process of its own, which tells its endpoint and ends with its stdin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.scene import ROOT
from tests.support.s3_server import s3_server


@contextmanager
def s3_process(request_seconds: float = 0.0) -> Iterator[tuple[dict[str, str], int]]:
    """Settings of a warehouse there, and the process id, for the time of the block. Objects are kept in memory.
    `request_seconds`: what each request takes."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.s3_process", str(request_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            storage = {
                "warehouse": "s3://lake/bench",
                "storage_endpoint": process.stdout.readline().strip(),
                "storage_region": "us-east-1",
                "storage_access_key": "bench",
                "storage_secret_key": "bench",
            }
            yield storage, process.pid
        finally:
            process.stdin.close()
            process.wait(30)


def main() -> None:
    with s3_server() as server:
        server.request_seconds = float(sys.argv[1])
        print(server.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
