"""A mirror that a released version wrote, frozen: the files of its database server, its lake, and what was in them.

`make fixture` makes the archive of the present version; tests put it up again.

**Where it is.** Metadata, manifests and position deletes of a lake hold absolute paths. So the lake is written to, and
put back at, one place of the machine (PLACE); a lock keeps two tests, or a test and `make fixture`, from using it at
once.

**The server.** An upgrade of the program keeps the server, with its OIDs, its WAL positions and its slot, all of which
the catalog refers to. So its files are archived as they are when it is stopped. They are good for the same major
version of PostgreSQL on the same kind of processor.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import Runner, major_version
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.tar_files import unpack

RELEASED = Path(__file__).parents[1] / "migration" / "released"
"""An archive for each released version: <version>.tar.xz."""

PLACE = Path("/tmp/mirror-pump-released")
"""Where every frozen mirror was written. The lake's files name each other by it."""

LAKE = PLACE / "lake"
SERVER = PLACE / "server"

DATABASE = "released"

UNFOLDED = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
"""Corrections that the lake does not have. Others stay as long as readers have pinned an older snapshot."""


@dataclass(frozen=True)
class Description:
    """What the archive holds beside SQL and files."""

    version: str
    """The program's."""
    server: str
    """What its files are good for: see `server_kind`."""
    frontier: int
    """The catalog's applied LSN."""
    states: Mapping[str, str]
    """State of each table."""
    pinned_snapshot: int
    """The snapshot of public.converted that a reader has pinned."""
    pinned_rows: list[list[Any]]
    """Its rows."""
    partitions: int
    """Number of partitions that public.events had so far."""


@dataclass(frozen=True)
class ReleasedMirror:
    """A frozen mirror that was put up again."""

    description: Description
    database: Database


def server_kind() -> str:
    """What a server's files depend on."""
    return f"PostgreSQL {major_version()} on {platform.machine()}"


def describe_states(database: Database) -> dict[str, str]:
    """State of each mirrored table by `schema.name`."""
    return dict(
        database.rows(
            "SELECT t.schema_name || '.' || t.table_name, m.state FROM modak.mirror_tables m"
            " JOIN modak.tables t USING (table_id) ORDER BY 1"
        )
    )


@contextmanager
def place() -> Iterator[None]:
    """Holds the place of frozen mirrors, which is empty at first, and empties it afterwards. Raises PermissionError if
    it belongs to somebody else."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if PLACE.is_symlink() or (PLACE.exists() and PLACE.stat().st_uid != os.getuid()):
            raise PermissionError(f"{PLACE} belongs to somebody else")
        shutil.rmtree(PLACE, ignore_errors=True)
        # The server may run as another user, who has to reach its files.
        PLACE.mkdir()
        PLACE.chmod(0o755)
        LAKE.mkdir(mode=0o700)
        try:
            yield
        finally:
            shutil.rmtree(PLACE, ignore_errors=True)


def freeze(description: Description) -> Path:
    """Writes the archive. The server is stopped."""
    file = PLACE / "description.json"
    file.write_text(json.dumps(asdict(description), indent=1))
    archive = RELEASED / f"{description.version}.tar.xz"
    archive.parent.mkdir(exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in (file, LAKE, SERVER / "data", SERVER / "password"):
            tar.add(path, str(path.relative_to(PLACE)), filter=_anonymous)
    return archive


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves out who made the archive, and where the server's program was."""
    if member.name.endswith("/postmaster.opts"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def described(archive: Path) -> Description:
    """What the archive says of itself."""
    with tarfile.open(archive) as tar:
        file = tar.extractfile("description.json")
        assert file is not None
        return Description(**json.load(file))


@contextmanager
def restored(archive: Path) -> Iterator[ReleasedMirror]:
    """The mirror of an archive, with its server, for the time of the block."""
    with place(), tarfile.open(archive) as tar:
        unpack(tar, PLACE, "tar")
        runner = Runner.choose()
        for path in (SERVER, *SERVER.rglob("*")):
            runner.give(path)
        with EmbeddedPostgres(SERVER) as server:
            yield ReleasedMirror(described(archive), Database(server, DATABASE))
