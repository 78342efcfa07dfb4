"""Runs a document's blocks as they stand."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

_DOCS = Path(__file__).parents[2] / "docs"


def documented_mirror(database: Database, warehouse: str, slot: str, **settings: Any) -> Mirror:
    """The mirror that the commands of a document use, initialised, with partitions looked at ten times a second."""
    chosen = Settings(
        dsn=database.dsn,
        warehouse=warehouse,
        slot=slot,
        publication=slot,
        storage_fsync=False,
        retention_interval=0.1,
        **settings,
    )
    initialise(chosen, lambda _: None)
    return Mirror(database, chosen, ThreadTaskRunner(2))


@dataclass
class DocumentBlocks:
    """The blocks of SQL and of commands in a file of docs/."""

    database: Database
    run: RunCommand
    text: str
    """The whole document."""
    outputs: list[str] = field(default_factory=list)
    """What each command has printed so far."""

    @classmethod
    def of(cls, name: str, database: Database, run: RunCommand) -> Self:
        """Those of docs/<name>."""
        return cls(database, run, (_DOCS / name).read_text(encoding="utf-8"))

    @property
    def languages(self) -> list[str]:
        return [language for language, _ in self._blocks]

    def execute(self, *numbers: int) -> None:
        """Runs blocks, by their place in the document. Fails if a command does."""
        for language, text in (self._blocks[number] for number in numbers):
            if language == "sql":
                with self.database.connect() as connection:
                    connection.execute(text.encode())
                continue
            for line in text.strip().splitlines():
                result = self.run(*shlex.split(line)[1:])
                assert result.exit_code == 0, (line, result.stderr, result.stdout)
                self.outputs.append(result.stdout)

    @property
    def _blocks(self) -> list[tuple[str, str]]:
        return re.findall(r"```(sql|sh)\n(.*?)```", self.text, re.DOTALL)
