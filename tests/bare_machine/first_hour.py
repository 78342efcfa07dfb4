"""`make first-hour`: executes the README on a bare machine, from the installation to a query result in DuckDB.

The wheel of the checkout replaces the registry's, and an embedded PostgreSQL the user's server. Prints how long each
command took. Fails if a command fails, but not if it is slow.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import psycopg

from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.bare_machine.machine import BareMachine
from tests.bare_machine.readme import shell_lines
from tests.bare_machine.steps import ScriptStep, StepFailed, run_steps

ROWS = 100_000
"""The name of the mirrored table."""
_GOAL = 300
"""Seconds to the query's result."""
_TIMEOUT = 1800
"""Seconds for everything: a slow network is no failure."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mirror-pump-first-hour-") as directory, EmbeddedPostgres() as server:
        machine = BareMachine(Path(directory))
        machine.build_wheel()
        dsn = server.create_database("shop")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(10,2), note text)")
            connection.execute(
                "INSERT INTO orders SELECT g, g %% 1000, md5(g::text) FROM generate_series(1, %s) g", (ROWS,)
            )
        try:
            steps = run_steps(_commands(dsn, machine), machine.environment(), machine.work, _TIMEOUT)
        except StepFailed as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    return _report(steps)


def _commands(dsn: str, machine: BareMachine) -> list[str]:
    """The README's commands, except for the user's own server and directory."""
    lines = [*shell_lines("Install"), *shell_lines("A first mirror of your own")]
    examples = {"postgresql://user:password@host/database": dsn, "/srv/lake": str(machine.work / "lake")}
    for example, own in examples.items():
        if sum(example in line for line in lines) != 1:
            raise StepFailed(f"the README no longer has {example!r} in its commands")
        lines = [line.replace(example, own) for line in lines]
    return lines


def _report(steps: list[ScriptStep]) -> int:
    total = 0.0
    result = None
    for step in steps:
        total += step.seconds
        command = step.command.partition("  #")[0].strip()
        if command.startswith("export MIRROR_PUMP_DSN"):
            command = "export MIRROR_PUMP_DSN=..."
        print(f"{step.seconds:7.1f} s  {command}")
        if command.startswith("mirror-pump sql"):
            result = total
            if str(ROWS) not in step.output.replace(",", ""):
                print(f"failed: the query did not return {ROWS}:\n{step.output}", file=sys.stderr)
                return 1
    if result is None:
        print("failed: the README has no query", file=sys.stderr)
        return 1
    print(f"{total:7.1f} s  in all; {result:.1f} s from a bare machine to the query's result (goal: {_GOAL} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
