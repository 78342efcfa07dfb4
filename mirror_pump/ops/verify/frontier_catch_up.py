"""Waits until the frontier reaches a WAL position. If no pump runs, starts one for that time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, TableId, format_lsn
from mirror_pump.ops.status.wait_for_frontier import wait_on
from mirror_pump.settings.config import ENV_PREFIX, Settings
from mirror_pump.source.connect import connect
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.leader import is_led
from sql import queries

_SQL = queries("verify")

_PATIENCE = 3600.0
"""Seconds to wait in all before giving up."""
_GRACE = 10.0
"""Seconds that the pump started here has to end when this process is interrupted."""
_COPY_PATIENCE = 300.0
"""Seconds without progress of any copy before giving up. A copy may be blocked until its owner acts, by adding a key
for example."""
_COPY_LOOK_INTERVAL = 0.2
"""Seconds between two checks of the copies' progress."""
_LOOK_INTERVAL = 5.0
"""Seconds between two checks whether a pump runs."""


def reach(settings: Settings, target: Lsn) -> None:
    """Return once the frontier has reached `target`. Raises SourceError if it does not within an hour."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-wait") as connection:
            if not is_led(connection, settings.slot):
                try:
                    _pump(settings, "--until-lsn", format_lsn(target))
                except SourceError:
                    # If another pump has taken the lead meanwhile, that one catches up.
                    if not is_led(connection, settings.slot):
                        raise
            result = wait_on(connection, settings, target, _LOOK_INTERVAL)
        if result.error is None:
            return
        if time.monotonic() > deadline:
            raise result.error


def await_copies(settings: Settings, table_ids: Sequence[TableId]) -> None:
    """Return once none of the tables is being copied, or their copies make no progress. If no pump runs, start one
    until it has caught up. Raises SourceError if that fails."""
    last_copies: list[_CopyRow] = []
    deadline = time.monotonic() + _COPY_PATIENCE
    with connect(settings.require_dsn(), autocommit=True) as connection:
        while copies := fetch_rows(connection, _CopyRow, _SQL["copies"], {"table_ids": list(table_ids)}):
            if copies != last_copies:
                last_copies, deadline = copies, time.monotonic() + _COPY_PATIENCE
            elif time.monotonic() > deadline:
                return
            if is_led(connection, settings.slot):
                time.sleep(_COPY_LOOK_INTERVAL)
                continue
            try:
                _pump(settings, "--once")
            except SourceError:
                if not is_led(connection, settings.slot):
                    raise


@dataclass(frozen=True)
class _CopyRow:
    """A row of the query `copies`: a change of any field is progress."""

    table_id: TableId
    start_lsn: Lsn
    generation: int
    state: str
    live_after_lsn: Lsn | None
    """None until the last chunk is copied."""
    chunks_done: int


def _pump(settings: Settings, *until: str) -> None:
    """Run a pump in a process of its own: a process has only one Spark session, and this one uses it for comparisons.
    Raises SourceError, with its last log lines, if it fails."""
    environment = os.environ | settings.environment(settings.model_fields_set)
    # The error below quotes its last lines.
    environment[f"{ENV_PREFIX}LOG_FORMAT"] = "human"
    command = [sys.executable, "-m", "mirror_pump.cli", "run", "--no-standby", *until]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            _, errors = process.communicate()
        except BaseException:
            # Let it shut down in order. A terminal's Ctrl-C has reached it as well.
            process.terminate()
            process.wait(_GRACE)
            raise
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise SourceError(f"catching up ({' '.join(until)}) failed: {' '.join(lines[-2:])}")
