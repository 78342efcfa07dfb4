"""What goes wrong during a history: kills, lost connections, a hanging leader, crashes of the server, ALTER TABLE."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from urllib.error import URLError

import psycopg

from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.program import Program
from proofs.histories.recorder import Recorder

_SESSIONS = (
    "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND application_name LIKE 'mirror-pump%' ORDER BY pid"
)


class Faults:
    """The processes of the mirror, and what happens to them. Pumps beyond the first one stand by."""

    def __init__(
        self, server: EmbeddedPostgres, dsn: str, program: Program, recorder: Recorder, pumps: int, port: int, seed: str
    ) -> None:
        self._server = server
        self._dsn = dsn
        self._program = program
        self._recorder = recorder
        self._chance = random.Random(f"{seed} faults")
        self._port = port
        self._pumps = [self._pump(number) for number in range(pumps)]
        self._catalog = self._serve()
        self._columns = 0
        self.counts: Counter[str] = Counter()

    @property
    def uri(self) -> str:
        """Of the REST catalog."""
        return f"http://127.0.0.1:{self._port}/iceberg"

    def work(self, stop: threading.Event, pause: float) -> None:
        """One after the other, until it is stopped. Then all processes run."""
        kinds: dict[Callable[[threading.Event], str], int] = {
            self._end_session: 6, self._kill_pump: 4, self._hang: 2, self._alter: 2,
            self._kill_catalog: 1, self._crash: 1,
        }  # fmt: skip
        while not stop.wait(self._chance.uniform(pause / 2, pause * 1.5)):
            (kind,) = self._chance.choices(list(kinds), list(kinds.values()))
            try:
                what = kind(stop)
            except psycopg.Error as error:
                what = f"{kind.__name__} came to nothing: {error}".partition("\n")[0]
            self._recorder.note("faults", "info", f="fault", value=what)
            self.counts[what.partition(":")[0]] += 1

    def close(self) -> None:
        """Kills all processes."""
        for process in (*self._pumps, self._catalog):
            self._program.kill(process)

    def _pump(self, number: int) -> subprocess.Popen[bytes]:
        return self._program.start("run", "--reconnect-backoff-max", "1", log=f"pump{number}.log")

    def _serve(self) -> subprocess.Popen[bytes]:
        catalog = self._program.start("serve", "--listen", f"127.0.0.1:{self._port}", log="serve.log")

        def answers() -> bool:
            with suppress(URLError, OSError):
                urllib.request.urlopen(f"{self.uri}/v1/config?warehouse=mirror", timeout=5).close()
                return True
            return False

        await_true(answers, 120, "the REST catalog answers")
        return catalog

    def _kill_pump(self, stop: threading.Event) -> str:
        number = self._chance.randrange(len(self._pumps))
        self._program.kill(self._pumps[number])
        stop.wait(self._chance.uniform(0, 2))
        self._pumps[number] = self._pump(number)
        return "pump killed"

    def _hang(self, stop: threading.Event) -> str:
        """For longer than a standby waits, or shorter: the pump may come back as a second leader."""
        group = self._chance.choice(self._pumps).pid
        os.killpg(group, signal.SIGSTOP)
        stop.wait(self._chance.uniform(1, 10))
        os.killpg(group, signal.SIGCONT)
        return "pump stopped for seconds"

    def _kill_catalog(self, _stop: threading.Event) -> str:
        self._program.kill(self._catalog)
        self._catalog = self._serve()
        return "REST catalog killed"

    def _crash(self, _stop: threading.Event) -> str:
        self._server.restart("immediate")
        return "server crashed"

    def _end_session(self, _stop: threading.Event) -> str:
        with closing(psycopg.connect(self._dsn, autocommit=True)) as connection:
            sessions = connection.execute(_SESSIONS.encode()).fetchall()
            if not sessions:
                return "no session to end"
            # Kinds of sessions of which there are few get their share.
            kind = self._chance.choice(sorted({name for _, name in sessions}))
            pid = self._chance.choice([pid for pid, name in sessions if name == kind])
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            return f"session ended: {kind}"

    def _alter(self, _stop: threading.Event) -> str:
        table = self._chance.choice("abcxy")
        self._columns += 1
        column = f"further_{self._columns}"
        kind = self._chance.choice(("int", "text", "int NOT NULL DEFAULT 7", "text DEFAULT 'x'"))
        with closing(psycopg.connect(self._dsn, autocommit=True)) as connection:
            connection.execute("SET lock_timeout = '10s'")
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}".encode())
            if table != "c" and self._chance.random() < 0.5:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}".encode())
        return "table altered"
