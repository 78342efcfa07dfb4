"""What tests of the command line share; their fixtures are in tests/integration/conftest.py."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from typer.testing import Result

from mirror_pump.testing.database import Database
from mirror_pump.testing.program import Program

PROGRAM = (
    sys.executable,
    "-c",
    "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from mirror_pump.cli.main import app; app()",
)
"""The program as a separate process that obeys Ctrl-C: shells make background processes ignore it, and tests may run in
the background."""


_PATCH = """
import importlib.util, sys

class Patch:
    # Only when the module is imported: most commands do without, and are twice as fast.
    def find_spec(self, name, path=None, target=None):
        if name != "mirror_pump.engine.spark_runtime.runner":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def patched(module):
            execute(module)
            module.SparkTaskRunner.start = in_threads

        spec.loader.exec_module = patched
        return spec

def in_threads(master, urgent, failed, ready, local_delay=0.0):
    from mirror_pump.testing.tasks import ThreadTaskRunner
    return ThreadTaskRunner(urgent + 4)

sys.meta_path.insert(0, Patch())
"""

_QUICK = {"MIRROR_PUMP_LIMITS__BATCH_PAUSE": "0.02", "MIRROR_PUMP_STORAGE_FSYNC": "false"}

_IN_THREADS = f"""{_PATCH}
from mirror_pump.cli.__main__ import main
main()
"""


class ThreadedProgram(Program):
    """The program, except that a pump in its process runs tasks in threads: starting Spark takes most of the time of a
    short command. Its batches are small and its files are not flushed. For tests of something else."""

    def __init__(self, dsn: str, directory: Path, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        """Like Program; `environment` overrides these settings as well."""
        super().__init__(dsn, directory, {**_QUICK, **environment})

    def command(self, *arguments: str) -> list[str]:
        """Like Program.command. Commands that never lead a mirror are unchanged."""
        if arguments[0] not in ("run", "register", "resync", "verify"):
            return super().command(*arguments)
        return [sys.executable, "-c", _IN_THREADS, *arguments]


def threaded_at_start(directory: Path) -> dict[str, str]:
    """Environment variables by which every Python that is started from now on makes its pumps ThreadedPrograms: also
    those that the program itself starts, without arguments of ours. Writes a file to the directory."""
    (directory / "sitecustomize.py").write_text(_PATCH)
    return {"PYTHONPATH": str(directory)}


def install_threaded(directory: Path) -> None:
    """Makes `mirror-pump` in this directory a ThreadedProgram, for scripts that have the directory in their PATH."""
    script = directory / "mirror-pump"
    script.write_text(f"#!{sys.executable}\n{_IN_THREADS}")
    script.chmod(0o755)


RunCommand = Callable[..., Result]
"""Runs the program with these arguments."""


def register_by_hand(database: Database, slot: str, *, state: str = "live", frontier: int | None = None) -> None:
    """A mirrored table in the catalog, without a pump: `init`, `status` and `wait` read nothing else."""
    with database.session() as connection:
        connection.execute(
            "INSERT INTO modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col,"
            " partition_scheme, lake_format, lake_table_ref, mode)"
            " VALUES (4711, 'public', 't', '{id}', 'id', '{}', 'iceberg', 'public.t', 'mirrored')"
        )
        connection.execute(
            "INSERT INTO modak.mirror_tables (table_id, slot_name, state, start_lsn, start_sequence, columns, key,"
            " lake_table, location, next_field_id) VALUES (4711, %s, %s, 0, 1, '[]', '{id}', 't', 'file:///t', 2)",
            (slot, state),
        )
        connection.execute(
            "INSERT INTO modak.cutline (table_id, tier_key_hi, lake_snapshot_id, replicated_lsn)"
            " VALUES (4711, -9223372036854775808, 1, %s)",
            (frontier,),
        )
        connection.execute("INSERT INTO modak.mirror_shapes (table_id) VALUES (4711)")


def on_a_terminal(command: Sequence[str], environment: Mapping[str, str], *, code: int = 0, columns: int = 100) -> str:
    """What a program that ends with `code` writes to a terminal."""
    ours, its = pty.openpty()
    environment = {**environment, "COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True)
    os.close(its)
    written = b""
    try:
        # Linux reports the end of a terminal as an error.
        with contextlib.suppress(OSError):
            while data := os.read(ours, 65536):
                written += data
        assert process.wait(60) == code, written.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        os.close(ours)
    return written.decode()
