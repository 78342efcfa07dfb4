"""Where residents connect: a process that does not prove within seconds that it knows the secret is disconnected.

Nothing that an unauthenticated peer sends is unpickled, and none makes the driver keep more than a socket and a thread,
of which there is a limited number. If more connect, the one that has been silent for longest has to go: a resident
needs milliseconds.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from mirror_pump.engine.spark_runtime.resident.address import watch_peer
from mirror_pump.engine.spark_runtime.resident.handshake import NotAuthenticated, admit_resident

_STRANGERS = 32
"""Peers at a time that have not authenticated themselves."""
_PAUSE = 0.1


class ResidentListener:
    """Accepts connections in a thread, and gives each resident a thread of its own, in which `admitted` is called with
    its number and its connection; `admitted` owns both. `tick` is called every `interval` seconds."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        secret: bytes,
        admitted: Callable[[int, socket.socket], None],
        tick: Callable[[], None],
        interval: float = 1.0,
        patience: float = 5.0,
    ) -> None:
        """`patience`: seconds in which a peer has to authenticate itself."""
        self._listening = listening
        self._tls = tls
        self._secret = secret
        self._admitted = admitted
        self._tick = tick
        self._interval = interval
        self._patience = patience
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, float] = {}
        """Peers that have not authenticated themselves, oldest first, and until when they have time."""
        self._closed = False
        listening.settimeout(interval)
        self._thread = threading.Thread(target=self._accept, name="resident-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accepts no more connections. Those of residents stay."""
        with self._lock:
            self._closed = True
            for stranger in self._strangers:
                hang_up(stranger)
        hang_up(self._listening)

    def _accept(self) -> None:
        ticked = time.monotonic()
        with self._listening:
            while not self._closed:
                try:
                    self._receive(self._listening.accept()[0])
                except TimeoutError:
                    pass
                except OSError:
                    # Out of descriptors, or the peer has gone already.
                    time.sleep(_PAUSE)
                now = time.monotonic()
                if now - ticked >= self._interval:
                    ticked = now
                    self._hang_up_overdue(now)
                    self._tick()

    def _receive(self, connection: socket.socket) -> None:
        if self._tls is not None:
            watch_peer(connection)
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        connection.settimeout(self._patience)
        with self._lock:
            if len(self._strangers) >= _STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                hang_up(oldest)
            self._strangers[connection] = time.monotonic() + self._patience
        threading.Thread(target=self._greet, args=(connection,), name="resident", daemon=True).start()

    def _hang_up_overdue(self, now: float) -> None:
        with self._lock:
            for stranger, deadline in self._strangers.items():
                if deadline < now:
                    hang_up(stranger)

    def _greet(self, connection: socket.socket) -> None:
        try:
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            number = admit_resident(connection, self._secret)
            connection.settimeout(None)
        except (OSError, ValueError, NotAuthenticated):
            connection.close()
            return
        finally:
            with self._lock:
                self._strangers.pop(connection, None)
        self._admitted(number, connection)


def hang_up(connection: socket.socket) -> None:
    """Ends a connection that another thread may be using; it stays open until that thread closes it."""
    with suppress(OSError):
        # Not the method of SSLSocket, which would pull its state away under the other thread.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
