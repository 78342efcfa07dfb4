"""On a cluster residents know the driver by its certificate, and what they say to each other is encrypted."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from mirror_pump.engine.spark_runtime.resident.address import TcpAddress, listen_tcp
from mirror_pump.engine.spark_runtime.resident.certificate import server_context
from mirror_pump.engine.spark_runtime.resident.frames import receive, send
from mirror_pump.engine.spark_runtime.resident.handshake import greet_driver
from mirror_pump.engine.spark_runtime.resident.listener import ResidentListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECRET = bytes(range(32))


class EncryptedDriver:
    """Sends back what it gets."""

    def __init__(self, tls: tuple[ssl.SSLContext, bytes]) -> None:
        context, certificate = tls
        listening = listen_tcp("127.0.0.1", 0)
        self.address = TcpAddress("127.0.0.1", listening.getsockname()[1], certificate)
        self.admitted = 0
        self.listener = ResidentListener(listening, context, _SECRET, self._admit, lambda: None, 0.1, patience=1.0)

    def _admit(self, _number: int, connection: socket.socket) -> None:
        self.admitted += 1
        with connection:
            send(connection, receive(connection))


@pytest.fixture
def driver(spark: SparkSession) -> Iterator[EncryptedDriver]:
    driver = EncryptedDriver(server_context(spark.sparkContext._jvm))
    yield driver
    driver.listener.close()


def test_nothing_is_readable_on_the_way(driver: EncryptedDriver) -> None:
    """A relay between both sees no byte of it."""
    relayed = b""
    relay = listen_tcp("127.0.0.1", 0)

    def carry(source: socket.socket, target: socket.socket) -> None:
        nonlocal relayed
        while data := source.recv(1 << 16):
            relayed += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        near, _ = relay.accept()
        with near, socket.create_connection((driver.address.host, driver.address.port)) as far:
            back = threading.Thread(target=carry, args=(far, near))
            back.start()
            carry(near, far)
            back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    message = b"a password of the database" * 100_000
    with relay, TcpAddress("127.0.0.1", relay.getsockname()[1], driver.address.certificate).connect(5) as connection:
        greet_driver(connection, _SECRET, 1)
        send(connection, message)
        assert receive(connection) == message
    thread.join(60)
    assert len(relayed) > 2 * len(message)
    assert b"password" not in relayed


def test_another_drivers_certificate(driver: EncryptedDriver, spark: SparkSession) -> None:
    """Whoever listens in the driver's place is not spoken to."""
    _, other = server_context(spark.sparkContext._jvm)
    with pytest.raises(ssl.SSLError, match=r"certificate verify failed"):
        TcpAddress("127.0.0.1", driver.address.port, other).connect(5)
    assert driver.admitted == 0


def test_strangers_without_tls(driver: EncryptedDriver) -> None:
    for said in (b"mirror-pump-task" + bytes(72), b"", b"\x16\x03\x01\x7f\xff" + bytes(100)):
        with socket.create_connection((driver.address.host, driver.address.port), 20) as connection:
            connection.sendall(said)
            with suppress(ConnectionResetError):
                # An alert of TLS, or nothing.
                assert connection.recv(1000)[:1] in (b"", b"\x15")
    assert driver.admitted == 0
    with driver.address.connect(5) as connection:
        greet_driver(connection, _SECRET, 1)
        send(connection, "hello")
        assert receive(connection) == "hello"
