"""Runs tasks as a node of a cluster does: in processes that have the archives for executors, and nothing else of ours.

Neither the packages of this environment nor its variables are there, and the home directory is empty. It takes a
second or two to start, a Spark cluster half a minute.
"""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TypeVar

from mirror_pump.engine.spark_runtime.executor_packages import PACKAGES, PROGRAM, archives

Task = TypeVar("Task")
Result = TypeVar("Result")

_SIZE = struct.Struct(">Q")
_NODE = """
import os, pickle, struct, sys
size = struct.Struct(">Q")
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
while header := sys.stdin.buffer.read(size.size):
    try:
        function, task = pickle.loads(sys.stdin.buffer.read(*size.unpack(header)))
        answer = pickle.dumps((function(task), None))
    except Exception as error:
        answer = pickle.dumps((None, error))
    answers.write(size.pack(len(answer)) + answer)
    answers.flush()
"""


ARCHIVES = (PACKAGES, PROGRAM)
"""What PYTHONPATH names on a node, relative to the directory."""


def unpack_archives(directory: Path) -> None:
    """Unpacks what executors get below the directory, as Spark does."""
    for name, path in archives().items():
        with zipfile.ZipFile(path) as archive:
            archive.extractall(directory / name)


class NodeTaskRunner:
    """A TaskRunner; see node_tasks()."""

    def __init__(self, nodes: list[subprocess.Popen[bytes]]) -> None:
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for node in nodes:
            self._idle.put(node)
        self._pool = ThreadPoolExecutor(len(nodes), thread_name_prefix="node")
        self._lock = threading.Lock()
        self.functions: set[str] = set()
        """Names of the functions that nodes have run."""
        self.shown: list[str] = []
        """The tasks as text, as logs and errors would show them."""

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Like TaskRunner.submit."""
        return self._pool.submit(self._run, function, task)

    def close(self) -> None:
        """Waits for running tasks."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, function: Callable[[Task], Result], task: Task) -> Result:
        with self._lock:
            self.functions.add(function.__name__)
            self.shown.append(repr(task))
        node = self._idle.get()
        try:
            assert node.stdin is not None
            assert node.stdout is not None
            content = pickle.dumps((function, task))
            node.stdin.write(_SIZE.pack(len(content)) + content)
            node.stdin.flush()
            (size,) = _SIZE.unpack(_exactly(node.stdout, _SIZE.size))
            result, error = pickle.loads(_exactly(node.stdout, size))
        finally:
            self._idle.put(node)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # what the function returned


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    assert len(content) == size, "a node has ended; its errors are in the test's output"
    return content


@contextmanager
def node_tasks(directory: Path, count: int = 2) -> Iterator[NodeTaskRunner]:
    """A runner whose tasks run in so many processes, which end with the block. The directory is one of
    unpack_archives()."""
    nodes = [
        subprocess.Popen(
            [sys._base_executable, "-s", "-c", _NODE],  # type: ignore[attr-defined]
            env={"PYTHONPATH": ":".join(ARCHIVES), "HOME": str(directory)},
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    runner = NodeTaskRunner(nodes)
    try:
        yield runner
    finally:
        for node in nodes:
            node.kill()
        runner.close()
        for node in nodes:
            node.communicate()
