"""Objects pass a socket as they are, whatever their size; a frame that cannot be read does not end the connection."""

from __future__ import annotations

import pickle
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from mirror_pump.engine.spark_runtime.resident.frames import Hangup, Unreadable, receive, send

_MIB = 1 << 20


@dataclass(frozen=True)
class Cargo:
    data: bytes
    table: pa.Table
    numbers: np.ndarray


class Refusing:
    """Its pickle cannot be read."""

    def __init__(self, weight: bytes) -> None:
        self.weight = weight

    def __reduce__(self) -> tuple[object, ...]:
        return _refuse, (self.weight,)


def _refuse(_weight: bytes) -> None:
    raise MemoryError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def sent(connection: socket.socket, *values: object) -> threading.Thread:
    def send_all() -> None:
        for value in values:
            send(connection, value)

    thread = threading.Thread(target=send_all)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 5 * _MIB + 3])
def test_what_arrives_is_what_was_sent(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    cargo = Cargo(data, pa.table({"v": [data, None]}), np.frombuffer(data, np.uint8).copy())
    thread = sent(ends[0], cargo, "next")
    arrived = receive(ends[1])
    assert (arrived.data, arrived.table) == (cargo.data, cargo.table)
    assert np.array_equal(arrived.numbers, cargo.numbers)
    assert arrived.numbers.flags.writeable
    assert receive(ends[1]) == "next"
    thread.join()


def test_large_bytes_are_not_copied_on_the_way(ends: tuple[socket.socket, socket.socket]) -> None:
    payload = bytes(64 * _MIB)
    tracemalloc.start()
    try:
        thread = sent(ends[0], (len, payload))
        arrived = receive(ends[1])
        thread.join()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert arrived == (len, payload)
    assert peak < 66 * _MIB, "the object that arrives, and nothing else"


def test_a_frame_that_cannot_be_read(ends: tuple[socket.socket, socket.socket]) -> None:
    thread = sent(ends[0], Refusing(bytes(3 * _MIB)), "next")
    with pytest.raises(Unreadable) as unreadable:
        receive(ends[1])
    assert isinstance(unreadable.value.__cause__, MemoryError)
    assert receive(ends[1]) == "next"
    thread.join()


def test_an_object_that_cannot_be_pickled_sends_nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TypeError, match="pickle"):
        send(ends[0], (bytes(3 * _MIB), threading.Lock()))
    send(ends[0], "next")
    assert receive(ends[1]) == "next"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_peer_that_ends_in_the_middle(ends: tuple[socket.socket, socket.socket], share: float) -> None:
    content = pickle.dumps(bytes(100_000), 5)
    frame = len(content).to_bytes(8, "big") + content
    ends[0].sendall(frame[: int(len(frame) * share)])
    ends[0].close()
    with pytest.raises(Hangup):
        receive(ends[1])
