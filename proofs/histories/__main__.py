"""Makes a history and judges it: `python -m proofs.histories --minutes 60 --seed 1`, or `make histories`.

Clients write to five mirrored tables of a PostgreSQL of their own and read them by every door, beside faults. What they
did is in DIRECTORY/history.jsonl, the verdict in DIRECTORY/verdict.md. `--judge FILE` judges a history that is there.
Exits with 1 if it is refused.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from mirror_pump.settings.config import Settings
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.postgres import EmbeddedPostgres, free_port
from mirror_pump.testing.program import Program
from proofs.histories.commits import CommitOrder
from proofs.histories.faults import Faults
from proofs.histories.judge import Judge, Verdict
from proofs.histories.readers import READERS, Doors, Reader
from proofs.histories.recorder import Recorder
from proofs.histories.writers import ACCOUNTS, LAG, Lists, Writer
from tests.support.cli import ThreadedProgram
from tests.support.pipeline import in_thread

ROOT = Path(__file__).resolve().parents[2]
_LINEARIZABLE = Path(__file__).parent / "linearizable"
_BALANCE = 1000
_TABLES = (
    *(f"CREATE TABLE {table} (k bigint PRIMARY KEY, v text NOT NULL)" for table in "ab"),
    "CREATE TABLE c (k bigint PRIMARY KEY, v text NOT NULL) PARTITION BY RANGE (k)",
    *(f"CREATE TABLE c{n} PARTITION OF c FOR VALUES FROM ({8 * n}) TO ({8 * n + 8})" for n in range(4)),
    *(f"CREATE TABLE {table} (k bigint PRIMARY KEY, n bigint NOT NULL)" for table in "xy"),
    *(f"INSERT INTO {name[0]} VALUES ({name[2:]}, {_BALANCE})" for name in ACCOUNTS),
)
_PATIENT = 300
"""Seconds for which a client may take to end, and the mirror to begin."""
_AT_LAST = {"wait", "frontier", "hand", "seam", "hybrid", "moment", "feed"}
"""Doors by which all is read once more when the writers and the faults have ended."""


def _prepared(program: Program, dsn: str, recorder: Recorder, directory: Path) -> CommitOrder:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        for statement in _TABLES:
            connection.execute(statement.encode())
    recorder.note("set-up", "info", f="accounts", value=dict.fromkeys(ACCOUNTS, _BALANCE))
    order = CommitOrder(dsn, recorder)
    program.run("init", "--warehouse", f"file://{directory / 'lake'}")
    program.run("register", *"abxy", "--changes", "--no-wait")
    retention = ("--heap-retention", str(LAG), "--premake", "4", "--width", "8", "--drop-grace", "0s")
    program.run("register", "c", *retention, "--yes", "--no-wait")
    return order


def _finish(readers: list[Reader], order: CommitOrder, program: Program) -> str:
    """Reads all once more, when nothing happens any more. Returns what `verify` says."""
    for reader in readers:
        if reader.door in _AT_LAST:
            await_true(reader.once, 180, f"the {reader.door} reader reads once more")
    order.fetch()
    return program.run("verify", timeout=600)


def make_history(options: argparse.Namespace, directory: Path) -> str:
    """Writes the history. Returns what else there is to say of it. Raises what a client or a fault failed with."""
    recorder = Recorder(directory / "history.jsonl")
    program_type = ThreadedProgram if options.tasks == "threads" else Program
    environment = {"MIRROR_PUMP_LIMITS__LEADER_SILENCE": "4"}
    with ExitStack() as stack:
        stack.callback(recorder.close)
        server = stack.enter_context(EmbeddedPostgres())
        dsn = server.create_database("histories")
        program = program_type(dsn, directory, environment)
        order = _prepared(program, dsn, recorder, directory)
        faults = Faults(server, dsn, program, recorder, options.pumps, free_port(), str(options.seed))
        stack.callback(faults.close)
        doors = Doors(dsn, faults.uri, program, Settings(dsn=dsn), recorder)
        doors.await_live(_PATIENT)
        readers = [reader(doors, str(options.seed)) for reader in READERS]
        lists = Lists()
        writers = [Writer(dsn, recorder, lists, number, str(options.seed)) for number in range(options.writers)]
        with ExitStack() as clients:
            clients.enter_context(in_thread(order.work, "order of commits", _PATIENT))
            works: list[Reader | Writer] = [*writers, *readers]
            for number, client in enumerate(works):
                pause = options.pause if isinstance(client, Writer) else options.pause * 4
                clients.enter_context(in_thread(partial(client.work, pause=pause), f"client {number}", _PATIENT))
            clients.enter_context(in_thread(partial(faults.work, pause=options.fault_pause), "faults", _PATIENT))
            threading.Event().wait(options.minutes * 60)
        verified = _finish(readers, order, program)
    counts = [f"| {what} | {count} |" for what, count in sorted(faults.counts.items())]
    return "\n".join(["| fault | times |", "|---|---|", *counts, "", "`mirror-pump verify`:", "", verified])


def linearizable(history: Path) -> tuple[bool, str]:
    """Whether porcupine accepts a history, and what it says; accepted if it cannot be built here."""
    if shutil.which("go") is None:
        return True, "not asked: there is no Go on this machine"
    program = ROOT / "build" / "linearizable"
    program.parent.mkdir(exist_ok=True)
    built = subprocess.run(
        ["go", "build", "-o", program], cwd=_LINEARIZABLE, capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        return True, f"not asked: {built.stderr.strip()}"
    asked = subprocess.run([program, history], capture_output=True, text=True, check=False)
    return asked.returncode == 0, (asked.stdout or asked.stderr).strip()


def judged(history: Path) -> tuple[bool, str]:
    """Whether both judges accept a history, and a page that says why."""
    operations: list[dict[str, Any]] = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    verdict: Verdict = Judge(operations).judge()
    accepted, words = linearizable(history)
    counts = [f"| {what} | {count} |" for what, count in sorted(verdict.counts.items())]
    faults = [f"- {fault}" for fault in verdict.faults[:30]] or ["- nothing"]
    page = [
        *(f"# {'Accepted' if accepted and not verdict.faults else 'Refused'}", "", f"{len(operations)} lines.", ""),
        *("| what | times |", "|---|---|", *counts, "", f"porcupine: {words}", ""),
        *(f"What is wrong ({len(verdict.faults)}):", "", *faults, ""),
    ]
    return accepted and not verdict.faults, "\n".join(page)


def main(arguments: list[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m proofs.histories", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of choices [random]")
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument("--pumps", type=int, default=2, help="of which one leads [2]")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between a writer's transactions [0.1]")
    parser.add_argument("--fault-pause", type=float, default=4, help="seconds between faults [4]")
    parser.add_argument("--tasks", choices=("spark", "threads"), default="spark", help="what pumps work with [spark]")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "histories", help="emptied first")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="judge this history, and make none")
    options = parser.parse_args(arguments)
    if options.judge is not None:
        accepted, page = judged(options.judge)
        print(page)
        return 0 if accepted else 1
    directory: Path = options.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    print(f"--seed {options.seed}, in {directory}", flush=True)
    began = time.monotonic()
    remarks = make_history(options, directory)
    accepted, page = judged(directory / "history.jsonl")
    page = f"{page}\n--seed {options.seed}, {(time.monotonic() - began) / 60:.1f} minutes in all.\n\n{remarks}"
    (directory / "verdict.md").write_text(page)
    print(page)
    return 0 if accepted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
