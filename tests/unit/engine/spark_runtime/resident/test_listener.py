"""Whoever does not know the secret gets nowhere: neither to an unpickler, nor in the way of those who know it."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_pump.engine.spark_runtime.resident.address import UnixAddress, listen_tcp, watch_peer
from mirror_pump.engine.spark_runtime.resident.frames import receive, send
from mirror_pump.engine.spark_runtime.resident.handshake import NotAuthenticated, greet_driver
from mirror_pump.engine.spark_runtime.resident.listener import ResidentListener, hang_up
from mirror_pump.testing.mirror import await_true

_SECRET = bytes(range(32))


class Exploit:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


class Driver:
    """A listener that greets those whom it admits."""

    def __init__(self) -> None:
        self.admitted: list[int] = []
        self.ticks = 0
        self.listening = listen_tcp("127.0.0.1", 0)
        self.address = self.listening.getsockname()
        self.listener = ResidentListener(self.listening, None, _SECRET, self._admit, self._tick, 0.1, patience=1.0)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 20)

    def _admit(self, number: int, connection: socket.socket) -> None:
        with connection:
            self.admitted.append(number)
            send(connection, "welcome")

    def _tick(self) -> None:
        self.ticks += 1


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.listener.close()
    await_true(lambda: driver.listening.fileno() == -1, 10, "the thread ends")


def is_hung_up(connection: socket.socket) -> bool:
    """Whether the driver ends the connection, within 20 s."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def assert_welcome(driver: Driver, number: int) -> None:
    with driver.connect() as connection:
        greet_driver(connection, _SECRET, number)
        assert receive(connection) == "welcome"
    assert driver.admitted[-1] == number


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(200),
        bytes([255]) * 1000,
        b"\xff" * 8 + b"\x80\x05",
        b"mirror-pump-task" + bytes(32) + bytes(8) + bytes(32),
    ],
    ids=["another protocol", "garbage", "a huge length", "a proof without the secret"],
)
def test_garbage_is_disconnected(driver: Driver, garbage: bytes) -> None:
    with driver.connect() as connection:
        connection.sendall(garbage)
        assert is_hung_up(connection)
    assert_welcome(driver, 7)
    assert driver.admitted == [7]


def test_nothing_of_a_stranger_is_unpickled(driver: Driver, tmp_path: Path) -> None:
    content = pickle.dumps(Exploit(tmp_path / "owned"), 5)
    frame = len(content).to_bytes(8, "big") + content
    for beginning in (b"", b"mirror-pump-task" + bytes(40), b"mirror-pump-task" + bytes(72)):
        with driver.connect() as connection:
            connection.sendall(beginning + frame * 20)
            assert is_hung_up(connection)
    assert not (tmp_path / "owned").exists()
    pickle.loads(content)
    assert (tmp_path / "owned").exists(), "it would have been seen"


def test_the_secret_of_another_application(driver: Driver) -> None:
    with driver.connect() as connection, pytest.raises(NotAuthenticated, match="the driver does not know"):
        greet_driver(connection, bytes(32), 7)
    assert driver.admitted == []


def test_a_driver_that_does_not_know_the_secret_gets_no_proof() -> None:
    """It could otherwise have the resident unpickle what it sends."""
    ours, theirs = socket.socketpair()
    received = b""

    def answer() -> None:
        nonlocal received
        theirs.recv(100)
        theirs.sendall(bytes(64))
        received = theirs.recv(100)

    with ours, theirs:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotAuthenticated):
            greet_driver(ours, _SECRET, 7)
        ours.close()
        thread.join()
    assert received == b""


def test_a_handshake_that_was_overheard(driver: Driver) -> None:
    """Replayed, or sent back, it is worth nothing."""
    said: list[bytes] = []

    class Overheard(socket.socket):
        def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
            said.append(bytes(data))
            super().sendall(data, flags)

    with Overheard(socket.AF_INET) as resident:
        resident.connect(driver.address)
        greet_driver(resident, _SECRET, 7)
        assert receive(resident) == "welcome"
    with driver.connect() as connection:
        connection.sendall(b"".join(said))
        assert is_hung_up(connection)
    with driver.connect() as connection:
        connection.sendall(said[0])
        answer = connection.recv(64, socket.MSG_WAITALL)
        # The driver's own proof.
        connection.sendall(answer[32:])
        assert is_hung_up(connection)
    assert driver.admitted == [7]


def test_silence_is_ended_within_seconds(driver: Driver) -> None:
    began = time.monotonic()
    with driver.connect() as connection, driver.connect() as dripping:
        stop = threading.Event()

        def drip() -> None:
            # No single wait is long.
            while not stop.wait(0.3):
                try:
                    dripping.sendall(b"m")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        assert is_hung_up(connection)
        assert is_hung_up(dripping)
        stop.set()
        thread.join()
    assert time.monotonic() - began < 15
    assert driver.ticks


def test_many_strangers_keep_nobody_out(driver: Driver) -> None:
    threads = threading.active_count()
    strangers = [driver.connect() for _ in range(200)]
    try:
        assert_welcome(driver, 7)
        await_true(lambda: threading.active_count() - threads <= 40, 10, "only some are listened to")
    finally:
        for stranger in strangers:
            stranger.close()
    assert_welcome(driver, 8)


def test_a_listener_that_is_closed(driver: Driver) -> None:
    stranger = driver.connect()
    assert_welcome(driver, 7)
    driver.listener.close()
    with stranger:
        assert is_hung_up(stranger)
    await_true(lambda: driver.listening.fileno() == -1, 10, "it accepts nobody")
    with pytest.raises(ConnectionRefusedError):
        driver.connect()


def test_the_socket_of_this_machine_is_this_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the name of its directory is; and those of drivers that were killed are removed."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    killed, abandoned = UnixAddress.listen()
    killed.close()
    listening, address = UnixAddress.listen()
    with listening, address.connect(5.0) as connection:
        accepted, _ = listening.accept()
        with accepted:
            connection.sendall(b"x")
            assert accepted.recv(1) == b"x"
    other, _ = UnixAddress.listen()
    other.close()
    assert address.path.parent.stat().st_mode & 0o777 == 0o700
    assert not abandoned.path.exists()
    hang_up(connection)


def test_a_network_that_drops_everything_is_noticed() -> None:
    """A peer that is only slow, or stopped, goes on acknowledging."""
    with listen_tcp("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()) as connection:
        watch_peer(connection)
        options = [
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            + connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
            * connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        ]
    assert options == [1, 30, 30_000]
