"""A primary with a physical standby that synchronises slots, and servers that are restored from a base backup."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import Runner
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.gate import Gate, gated

PHYSICAL_SLOT = "standby"
DATABASE = "mirrored"

_SMALL = {"shared_buffers": "32MB", "max_wal_size": "256MB", "min_wal_size": "32MB"}


@contextmanager
def directories() -> Iterator[Path]:
    """A directory that the server's user may enter, removed with everything in it at the end."""
    root = Path(tempfile.mkdtemp(prefix="mirror-pump-replicas-"))
    root.chmod(0o755)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def hand_over(path: Path) -> None:
    """Makes the server's user the owner of a directory and of everything in it."""
    runner = Runner.choose()
    runner.give(path)
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            runner.give(Path(directory, name))


def copied(source: Path, target: Path, settings: Mapping[str, str]) -> EmbeddedPostgres:
    """A server with the files of one that does not run."""
    shutil.copytree(source, target, symlinks=True)
    hand_over(target)
    return EmbeddedPostgres(target, settings={**_SMALL, **settings})


def backed_up(
    server: EmbeddedPostgres, target: Path, settings: Mapping[str, str], *, signal: str = ""
) -> EmbeddedPostgres:
    """A server with a base backup of a running one. `signal`: the file that says how it starts, such as
    `standby.signal`."""
    target.mkdir()
    subprocess.run(
        [
            str(server.binary("pg_basebackup")), f"--pgdata={target / 'data'}", f"--dbname={server.dsn()}",
            "--checkpoint=fast", "--wal-method=stream", "--no-sync",
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    shutil.copy(server.directory / "password", target / "password")
    if signal:
        (target / "data" / signal).touch()
    hand_over(target)
    return EmbeddedPostgres(target, settings={**_SMALL, **settings})


def servers_dsn(server: EmbeddedPostgres, ports: Sequence[int]) -> str:
    """The database on whichever of these servers is the primary."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return (
        f"postgresql://postgres:{server.password}@{hosts}/{DATABASE}?target_session_attrs=read-write&connect_timeout=5"
    )


def _as_standby(primary: EmbeddedPostgres, port: int) -> dict[str, str]:
    """Settings of a standby that reaches its primary at `port`."""
    return {
        "synchronized_standby_slots": "",
        "primary_conninfo": f"host=127.0.0.1 port={port} user=postgres password={primary.password} dbname={DATABASE}",
        "primary_slot_name": PHYSICAL_SLOT,
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
        "wal_receiver_status_interval": "1s",
    }


def following(primary: EmbeddedPostgres, directory: Path, port: int, settings: Mapping[str, str]) -> EmbeddedPostgres:
    """A new standby of a primary, not started yet, that will listen on this port. `settings`: further ones."""
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", (PHYSICAL_SLOT,))
    settings = {**_as_standby(primary, primary.port), **settings}
    standby = backed_up(primary, directory, settings, signal="standby.signal")
    standby.port = port
    return standby


@dataclass(frozen=True)
class Replicated:
    """A primary and its standby, which receives WAL through a gate."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres
    gate: Gate
    """Shut, the standby receives no WAL, but still synchronises slots."""

    @property
    def dsn(self) -> str:
        """Both servers, whichever is the primary."""
        return servers_dsn(self.primary, [self.primary.port, self.standby.port])

    @property
    def before(self) -> Database:
        """The database on the first primary."""
        return Database(self.primary, DATABASE)

    @property
    def after(self) -> Database:
        """The database on the standby, which can be written once that is promoted."""
        return Database(self.standby, DATABASE)

    def caught_up(self) -> None:
        """Returns once the standby has replayed everything that the primary has flushed."""
        ((end,),) = self.before.rows("SELECT pg_current_wal_flush_lsn()::text")
        await_true(
            lambda: self.after.rows("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)) == [(True,)],
            20,
            "the standby has replayed everything",
        )

    def synchronised(self, slot: str) -> bool:
        """Whether the standby has the slot at the position that the primary has it at."""
        positions = [database.rows(_POSITION, (slot,)) for database in (self.before, self.after)]
        return positions[0] == positions[1] != []

    def give_slot(self, mirror: Mirror) -> None:
        """Returns once the standby has the slot, and no pump runs."""
        with mirror.pumping():
            await_true(lambda: has_slot_soon(mirror, self.after), 60, "the standby has the slot")
        await_true(lambda: self.synchronised(mirror.settings.slot), 60, "it is synchronised")

    def fail_over(self) -> None:
        """The primary crashes, and the standby is promoted with what it has."""
        self.primary.stop("immediate")
        self.promote()

    def promote_again(self) -> None:
        """The new primary becomes a standby without a primary, and is promoted once more."""
        self.standby.stop()
        (self.standby.directory / "data" / "standby.signal").touch()
        self.standby.start()
        self.promote()

    def promote(self) -> None:
        """Returns once the standby is a primary."""
        assert self.after.rows("SELECT pg_promote(true, 30)") == [(True,)]


def has_slot_soon(mirror: Mirror, standby: Database) -> bool:
    """Whether the standby has the slot as one that outlives a promotion. If not, a pump that runs has moved it to where
    the standby can have it: beyond the transactions that were open when the standby began. The servers write what this
    needs every 15 s by themselves."""
    if standby.rows(_POSITION, (mirror.settings.slot,)):
        return True
    mirror.database.execute("SELECT pg_log_standby_snapshot()")
    mirror.await_frontier()
    return False


_POSITION = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s AND NOT temporary"


@contextmanager
def replicated(template: Path, *, settings: Mapping[str, str]) -> Iterator[Replicated]:
    """Both servers, from the files of a server that was stopped. `settings`: further ones of both."""
    with ExitStack() as stack:
        root = stack.enter_context(directories())
        primary = stack.enter_context(copied(template, root / "primary", settings))
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", (PHYSICAL_SLOT,))
        gate = stack.enter_context(gated(primary.dsn(), only_walreceivers=True))
        standby_settings = {**settings, **_as_standby(primary, gate.port)}
        standby = stack.enter_context(backed_up(primary, root / "standby", standby_settings, signal="standby.signal"))
        yield Replicated(primary, standby, gate)
