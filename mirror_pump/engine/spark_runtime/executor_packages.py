"""The program and the packages that it needs, as archives that Spark hands to the executors of a cluster.

With them a node needs Spark, Java and a Python of the driver's version, and nothing of this project has to be installed
there. Spark copies each archive to every executor and unpacks it in the executor's own directory; PYTHONPATH, which
comes before the packages of the node, names both.

There are two, since one is large and rarely changes: the packages, kept for their versions, and the program itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from mirror_pump.engine.spark_runtime.cache import cache_directory
from mirror_pump.errors import UsageError

PACKAGES, PROGRAM = "mirror-pump-packages", "mirror-pump-program"
"""The directories that the archives become on an executor. With hyphens: neither is a name that Python imports."""

_PROGRAM = ("decoders", "mirror_pump", "sql")
_ROOT = "mirror-pump"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")

_USELESS_SUFFIXES = (".pyc", ".pyi", ".pyx", ".pxd", ".h", ".hpp", ".a")
_USELESS_DIRECTORIES = frozenset({"__pycache__", "tests", "include"})
_USELESS = (
    # Spark itself is on the node. Without the Python part here, the node's zip of it would stay on the path of workers,
    # and be read again before each task (worker_daemon).
    *(f"pyspark/{name}/" for name in ("bin", "data", "examples", "jars", "licenses", "python", "sbin")),
    # An eighth of the archive, for a protocol that tasks do not speak.
    "pyarrow/libarrow_flight.so",
)
_U32 = 0xFFFFFFFF
_UNCHECKED = struct.pack("<IQ", 1, 0)
"""Flags of a compiled module that is never compared with its source, and the place of the source's hash."""
_RULES = (_USELESS_SUFFIXES, sorted(_USELESS_DIRECTORIES), _USELESS, _UNCHECKED)
"""What an archive of packages depends on beside their versions."""

Files = dict[str, Path]
"""Where the files of an archive are, by their path within it."""


def archives() -> dict[str, Path]:
    """The archives by the name of their directory on an executor, made if they are not there yet: a few seconds, once
    for each version. Raises UsageError if a package cannot be packed."""
    # A version of a package names its content; the program's own may be a checkout that is being worked on.
    content = [
        repr(_RULES),
        *sorted(f"{distribution.name} {distribution.version}" for distribution in _distributions()),
    ]
    return {
        PACKAGES: _archive(PACKAGES, _digest(text.encode() for text in content), _package_files),
        PROGRAM: _archive(PROGRAM, _program_digest(), _program_files),
    }


def _archive(name: str, digest: str, files: Callable[[], Files]) -> Path:
    path = cache_directory() / "executors" / f"{name}-{digest}.zip"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, as another process may be starting a Spark right now.
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        # Not compressed: unpacking would cost each executor more than a fast network saves.
        with (
            os.fdopen(handle, "wb") as file,
            zipfile.ZipFile(file, "w", strict_timestamps=False) as archive,
        ):
            for inside, source in sorted(files().items()):
                archive.write(source, inside)
                compiled = _compiled(source)
                if compiled is not None:
                    archive.writestr(importlib.util.cache_from_source(inside), compiled)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _compiled(source: Path) -> bytes | None:
    """The module compiled, as it is used here; None if it never was. Without it each executor compiles everything that
    tasks import, which takes seconds. It is marked to be used whatever the time of its source (PEP 552): unpacking sets
    that anew."""
    if source.suffix != ".py":
        return None
    try:
        content = Path(importlib.util.cache_from_source(source)).read_bytes()
        status = source.stat()
    except OSError:
        return None
    # Of exactly this source: flags, its time, its size.
    header = struct.pack("<4sIII", importlib.util.MAGIC_NUMBER, 0, int(status.st_mtime) & _U32, status.st_size & _U32)
    return content[:4] + _UNCHECKED + content[16:] if content[:16] == header else None


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {platform.machine()}".encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def _program_digest() -> str:
    return _digest(
        part for inside, path in sorted(_program_files().items()) for part in (inside.encode(), path.read_bytes())
    )


def _program_files() -> Files:
    files = {}
    for package in _PROGRAM:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for directory in map(Path, spec.submodule_search_locations or ()):
            for path in directory.rglob("*"):
                inside = PurePosixPath(package, *path.relative_to(directory).parts)
                if path.is_file() and _is_useful(inside):
                    files[str(inside)] = path
    return files


def _package_files() -> Files:
    paths = {}
    for distribution in _distributions():
        files = distribution.files
        if files is None:
            raise UsageError(
                f"package {distribution.name} cannot be packed for the executors: it has no list of its files",
                "install mirror-pump with pip into an environment of its own (python3 -m venv)",
            )
        for file in files:
            # Scripts are outside of the directory of packages.
            if ".." not in file.parts and not file.is_absolute() and _is_useful(file):
                paths[str(file)] = Path(str(distribution.locate_file(file)))
    return {inside: path for inside, path in paths.items() if path.is_file()}


def _is_useful(inside: PurePosixPath) -> bool:
    return (
        inside.suffix not in _USELESS_SUFFIXES
        and not _USELESS_DIRECTORIES & set(inside.parts[:-1])
        and not str(inside).startswith(_USELESS)
    )


def _distributions() -> list[importlib.metadata.Distribution]:
    """What tasks need, and what that needs, as far as it is installed here: the program's dependencies, and of its
    extras what reaches object stores. The program itself is left out."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    visited: set[tuple[str, str]] = set()
    todo = [(_ROOT, ""), (_ROOT, "lake")]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in visited:
            continue
        visited.add((name, extra))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name == _ROOT:
                raise UsageError(
                    "mirror-pump is not installed as a package, so it cannot be handed to executors",
                    "pip install mirror-pump, or pip install --editable in a checkout",
                ) from None
            # It is for another platform or Python.
            continue
        distributions[_normal(name)] = distribution
        todo += _required(distribution.requires or (), extra)
    del distributions[_ROOT]
    return list(distributions.values())


def _required(requirements: Iterable[str], extra: str) -> Iterator[tuple[str, str]]:
    """Names of the packages that a package with this extra needs, each with one of the extras that are wanted of it.
    Other conditions are not looked at: a package that does not belong here is not installed."""
    for requirement in requirements:
        parsed = _REQUIREMENT.match(requirement)
        if parsed is None:
            continue
        required_extra = _EXTRA.search(parsed[3] or "")
        if required_extra is not None and required_extra[1] != extra:
            continue
        yield _normal(parsed[1]), ""
        yield from ((_normal(parsed[1]), part.strip()) for part in (parsed[2] or "").split(",") if part.strip())


def _normal(name: str) -> str:
    """As PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()
