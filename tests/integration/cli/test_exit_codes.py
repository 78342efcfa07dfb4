"""Exit codes of commands that take tables, and what they say about names that mean none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.main import get_command

from mirror_pump.cli.main import app
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

_COMMANDS = {
    "register": ("--no-wait",),
    "register --dry-run": (),
    "register --alter": ("--changes",),
    "register --alter --sort-by id": (),
    "unregister": (),
    "unregister --restore-heap": (),
    "verify": (),
    "verify --repair": (),
    "changes": ("--since", "0/1"),
    "reader pg_monitor": ("--print",),
    "connect --engine duckdb --table": (),
    "load": ("rows.csv", "--label", "first"),
    "maintain": ("--no-wait",),
    "maintain --dry-run": (),
    "policy get": (),
    "policy set": ("history_newest", "5"),
    "retain": ("--dry-run",),
    "ingest": ("rows.csv",),
    "resync": ("--no-wait",),
    "resync --dry-run": (),
    "resync --where-different": (),
    "where": ("1",),
    "pause": (),
    "resume": ("--no-wait",),
}
"""What comes before a table, and what comes behind it."""
_ONE_TABLE = ("where", "changes", "connect", "load", "policy", "ingest")
_NEED_NO_REGISTRATION = ("register", "reader", "load")


def _taking_tables(command: Any, path: str = "") -> set[str]:
    if hasattr(command, "commands"):
        return set().union(*(_taking_tables(command.commands[name], path or name) for name in command.commands))
    return {path} if any(parameter.name in ("table", "tables") for parameter in command.params) else set()


def test_all_commands_are_looked_at() -> None:
    # Tables of `lake` are no tables of PostgreSQL; those of `doctor --plan` are patterns (test_plan.py), and `follow`
    # has one for names in another catalog.
    assert {command.split()[0] for command in _COMMANDS} == _taking_tables(get_command(app)) - {
        "lake",
        "doctor",
        "follow",
    }


def test_a_name_that_means_no_table(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand, tmp_path: Path
) -> None:
    """2 wherever it is the only one; 1 where others beside it were done. A table that is not registered is 1."""
    database.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.orders (id int PRIMARY KEY)",
        "CREATE TABLE shop.other (id int PRIMARY KEY)",
        "CREATE TABLE public.orders (id int PRIMARY KEY)",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("shop.orders")
    mirror.catch_up()
    (tmp_path / "rows.csv").write_text("id\n1\n")
    slot = ("--slot", mirror.settings.slot)
    wrong: list[tuple[object, ...]] = []

    def expect(code: int, command: str, *arguments: str, said: str = "") -> None:
        result = run(*command.split(), *arguments)
        if result.exit_code != code or said not in result.stderr:
            wrong.append((command, *arguments, result.exit_code, result.stderr))

    for command, behind in _COMMANDS.items():
        name = command.split()[0]
        options = (*behind, *(() if name in ("connect", "load") else slot))
        expect(2, command, "shop.orderz", *options, said="there is no table shop.orderz")
        expect(2, command, "shop.orderz", *options, said="did you mean shop.orders?")
        expect(2, command, "a.b.c.d", *options, said="is not a table name")
        if name not in _NEED_NO_REGISTRATION or "--alter" in command:
            expect(1, command, "shop.other", *options)
        if name not in _ONE_TABLE and "--alter" not in command:
            expect(2, command, "shop.orderz", "nowhere", *options)
    for command in ("register", "pause", "resume", "unregister"):
        expect(
            1, command, "shop.orders", "shop.orderz", *_COMMANDS[command], *slot, said="there is no table shop.orderz"
        )
    expect(2, "register", "nowhere.*", *slot, said="no table matches")
    assert not wrong, wrong
