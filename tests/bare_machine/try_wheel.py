"""`make try-wheel`: the wheel in a new environment, without extras and Java, then with them, on a PostgreSQL server; at
last the checkout itself in its place."""

from __future__ import annotations

import shlex
import sys
import tempfile
import zipfile
from pathlib import Path

import psycopg

from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.bare_machine.machine import CHECKOUT, BareMachine
from tests.bare_machine.readme import README
from tests.bare_machine.steps import StepFailed, run_steps

_TIMEOUT = 1800
"""Seconds for everything: a slow network is no failure."""

_REFUSED = """\
if {command} >refused.log 2>&1; then echo 'it did not fail'; false; fi
cat refused.log; test "$(wc -l <refused.log)" -le 3; grep -F "{remedy}" refused.log >/dev/null"""

_INSTALLED = """
import importlib.metadata, pathlib, sys, mirror_pump, decoders, sql
for module in (mirror_pump, decoders, sql):
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
extras = importlib.metadata.metadata("mirror-pump").get_all("Provides-Extra")
assert sorted(extras) == ["demo", "java", "lake", "oauth", "sql", "telemetry"], extras
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mirror-pump-try-wheel-") as directory, EmbeddedPostgres() as server:
        machine = BareMachine(Path(directory))
        wheel = machine.build_wheel()
        dsn = server.create_database("shop")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(10,2))")
            connection.execute("INSERT INTO orders SELECT g, g FROM generate_series(1, 1000) g")
        (machine.work / "installed.py").write_text(_INSTALLED)
        try:
            _check_metadata(wheel)
            steps = run_steps(_commands(), machine.environment(MIRROR_PUMP_DSN=dsn), machine.work, _TIMEOUT)
        except StepFailed as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
        outputs = {step.command: step.output for step in steps}
    for step in steps:
        print(f"{step.seconds:7.1f} s  {step.command.splitlines()[0]}")
    if "1000" not in outputs[_QUERY].replace(",", ""):
        print(f"failed: {_QUERY} said\n{outputs[_QUERY]}", file=sys.stderr)
        return 1
    print(f"{wheel.name} works away from {CHECKOUT}")
    return 0


_QUERY = 'mirror-pump sql "SELECT count(*) FROM orders"'


def _commands() -> list[str]:
    return [
        "python3 -m venv fresh && . fresh/bin/activate",
        "pip install --quiet mirror-pump",
        "mirror-pump init --warehouse lake",
        _REFUSED.format(command="mirror-pump register orders", remedy="pip install 'mirror-pump[java]'"),
        _REFUSED.format(command="mirror-pump run --once", remedy="pip install 'mirror-pump[java]'"),
        _REFUSED.format(command=_QUERY, remedy="pip install 'mirror-pump[sql]'"),
        "pip install --quiet 'mirror-pump[java,sql]'",
        "python -P installed.py",
        "mirror-pump register orders",
        "mirror-pump run --listen 127.0.0.1:0 & PUMP=$!",
        "mirror-pump status",
        "mirror-pump wait --now --timeout 120",
        "mirror-pump verify",
        _QUERY,
        'kill "$PUMP" && wait "$PUMP"',
        f"pip install --quiet --no-deps --force-reinstall {shlex.quote(str(CHECKOUT))}",
        "python -P installed.py",
    ]


def _check_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    if README.read_text().strip() not in metadata or "Description-Content-Type: text/markdown" not in metadata:
        raise StepFailed("the wheel's long description is not the README")


if __name__ == "__main__":
    sys.exit(main())
