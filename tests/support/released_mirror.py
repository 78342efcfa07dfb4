"""A mirror that a released version wrote, frozen: its database as SQL, its lake as files, and what was in them.

`make fixture` makes the archive of the present version; tests put it up again on a server of their own.

**Where it is.** Metadata, manifests and position deletes of a lake hold absolute paths. So the lake is written to, and
put back at, one place of the machine (LAKE); a lock keeps two tests, or a test and `make fixture`, from using it at
once.

**The server.** An upgrade of the program keeps the server, with its OIDs, its WAL positions and its slot. The catalog
refers to all three, and a plain dump has none of them. They are put up as pg_upgrade does: pg_dump --binary-upgrade
keeps the OIDs of relations and types and the numbers of files; pg_resetwal begins the WAL shortly before the frozen
frontier, and transaction IDs beyond the frozen ones. A slot is then made there and advanced to the frontier, where the
frozen one stood: the WAL in between has no change of a table. Only the cluster's own identity cannot be kept:
modak.mirror_slots gets the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mirror_pump.testing.database import Database
from mirror_pump.testing.postgres import EmbeddedPostgres

RELEASED = Path(__file__).parents[1] / "migration" / "released"
"""An archive for each released version: <version>.tar.xz."""

LAKE = Path("/tmp/mirror-pump-released-lake")
"""Where every frozen lake was written. Its files name each other by it."""

DATABASE = "released"

WAL_SEGMENT = 0x20
"""The segment of WAL (16 MiB) in which frozen mirrors are written. A restored server writes what it restores before
it."""

UNFOLDED = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
"""Corrections that the lake does not have. Others stay as long as readers have pinned an older snapshot."""

_RESTORE_SEGMENT = 0x08
_NEXT_XID = 20_000
"""Beyond all transaction IDs in an archive, and on the first page of pg_xact."""

_CTIDS = "SELECT md5(string_agg(ctid::text || ' ' || id, ',' ORDER BY ctid)) FROM copying"


@dataclass(frozen=True)
class Description:
    """What the archive holds beside SQL and files."""

    version: str
    """The program's."""
    server: int
    """PostgreSQL's major version: only the same one can restore it."""
    slot: str
    frontier: int
    """The catalog's applied LSN, where the slot stood too."""
    states: Mapping[str, str]
    """State of each table."""
    pinned_snapshot: int
    """The snapshot of public.converted that a reader has pinned."""
    pinned_rows: list[list[Any]]
    """Its rows."""
    partitions: int
    """Number of partitions that public.events had so far."""
    ctids: str
    """Digest of where the rows of public.copying are: chunks of its copy are ranges of blocks."""


@dataclass(frozen=True)
class ReleasedMirror:
    """A frozen mirror that was put up again."""

    description: Description
    database: Database


@contextmanager
def lake_directory() -> Iterator[None]:
    """Holds the place of the lake, which is empty at first, and removes it afterwards. Raises PermissionError if it
    belongs to somebody else."""
    with LAKE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if LAKE.is_symlink() or (LAKE.exists() and LAKE.stat().st_uid != os.getuid()):
            raise PermissionError(f"{LAKE} belongs to somebody else")
        shutil.rmtree(LAKE, ignore_errors=True)
        LAKE.mkdir(mode=0o700)
        try:
            yield
        finally:
            shutil.rmtree(LAKE, ignore_errors=True)


def wal_file(segment: int) -> str:
    """The name of a WAL segment of timeline 1."""
    return f"{1:08X}{0:08X}{segment:08X}"


def describe_states(database: Database) -> dict[str, str]:
    """State of each mirrored table by `schema.name`."""
    return dict(
        database.rows(
            "SELECT t.schema_name || '.' || t.table_name, m.state FROM modak.mirror_tables m"
            " JOIN modak.tables t USING (table_id) ORDER BY 1"
        )
    )


def ctids(database: Database) -> str:
    """See Description.ctids."""
    return str(database.rows(_CTIDS)[0][0])


def freeze(database: Database, description: Description, directory: Path) -> Path:
    """Writes the archive, by way of `directory`. Nothing may use the mirror meanwhile."""
    catalog = directory / "database.sql"
    dump = [
        str(database.server.binary("pg_dump")),
        "--binary-upgrade",
        "--file",
        str(catalog),
        "--dbname",
        database.dsn,
    ]
    subprocess.run(dump, check=True)
    (directory / "description.json").write_text(json.dumps(asdict(description), indent=1))
    archive = RELEASED / f"{description.version}.tar.xz"
    archive.parent.mkdir(exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in (directory / "description.json", catalog):
            tar.add(path, path.name)
        tar.add(LAKE, "lake")
    return archive


@contextmanager
def restored(archive: Path, directory: Path) -> Iterator[ReleasedMirror]:
    """The mirror of an archive, on a server of its own, for the time of the block. `directory` is for temporary
    files."""
    with lake_directory(), tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
        description = Description(**json.loads((directory / "description.json").read_text()))
        shutil.copytree(directory / "lake", LAKE, dirs_exist_ok=True)
        with EmbeddedPostgres() as server:
            database = _restore(server, directory / "database.sql", description)
            yield ReleasedMirror(description, database)


def _restore(server: EmbeddedPostgres, catalog: Path, description: Description) -> Database:
    server.stop()
    server.run_stopped(
        "pg_resetwal", f"--next-wal-file={wal_file(_RESTORE_SEGMENT)}", f"--next-transaction-id={_NEXT_XID}"
    )
    server.start("-b")
    database = Database(server, DATABASE)
    server.create_database(DATABASE)
    # No trigger and no event trigger of the mirror acts on what is restored.
    command = [
        str(server.binary("psql")),
        "--no-psqlrc",
        "--quiet",
        "--set=ON_ERROR_STOP=1",
        f"--file={catalog}",
        database.dsn,
    ]
    environment = {**os.environ, "PGOPTIONS": "-c session_replication_role=replica"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the dump cannot be restored: {done.stderr[-3000:]}"
    server.stop()
    segment = description.frontier // (16 << 20)
    server.run_stopped("pg_resetwal", f"--next-wal-file={wal_file(segment - 1)}")
    server.start()
    _make_slot(database, description)
    assert ctids(database) == description.ctids, "rows of public.copying are where they were"
    return database


def _make_slot(database: Database, description: Description) -> None:
    with database.connect() as connection:
        run = connection.execute
        run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)", (description.slot,))
        assert database.lsn() < description.frontier
        run("SELECT pg_switch_wal()")
        while database.lsn() <= description.frontier:
            run("SELECT pg_logical_emit_message(false, 'test', repeat('x', 100000))")
        run(
            "SELECT pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s::numeric)",
            (description.slot, description.frontier),
        )
        run(
            "UPDATE modak.mirror_slots SET system_identifier ="
            " (SELECT system_identifier::text FROM pg_control_system())"
        )
