"""The table of docs/damage.md: who notices each kind of damage, as a run has found it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from proofs.damage.damage import Damage
from proofs.damage.observers import Observer
from proofs.damage.report import Result, chosen

DOCUMENT = Path(__file__).parents[2] / "docs" / "damage.md"
HEAD = "| what | damage | first noticed by | also by | until then |\n|---|---|---|---|---|\n"
_TIMES = {
    Observer.START: "a pump that starts",
    Observer.LOOK: "the look",
    Observer.CHANGE: "the next publish of the table",
    Observer.READERS: "readers",
    Observer.STATUS: "`status`",
    Observer.DOCTOR: "`doctor`",
    Observer.VERIFY: "`verify`",
}
"""The first of these notices first: those that come by themselves, the soonest ones, then those that are asked."""
_OBSERVERS = {text: observer for observer, text in _TIMES.items()}
_NOBODY = "no program: "
_WRONG = "wrong rows"
_BETWEEN = "; "


@dataclass(frozen=True)
class Finding:
    """What the table says of one kind of damage."""

    noticed: tuple[Observer, ...]
    """In the order of the table."""
    reason: str
    """Why no program notices it; empty if some do."""
    is_wrong: bool
    """Whether readers find wrong rows until it is noticed."""

    @classmethod
    def of(cls, result: Result) -> Finding:
        """What a run has found."""
        noticed = tuple(observer for observer in _TIMES if observer in result.observation.texts)
        return cls(noticed, "" if noticed else result.damage.reason, bool(result.observation.wrong))

    @property
    def cells(self) -> tuple[str, str, str]:
        first, *others = [_TIMES[observer] for observer in self.noticed] or [_NOBODY + self.reason]
        return first, ", ".join(others), _WRONG if self.is_wrong else ""

    @classmethod
    def read(cls, first: str, others: str, wrong: str) -> Finding:
        """Of the cells."""
        if first.startswith(_NOBODY):
            return cls((), first.removeprefix(_NOBODY), wrong == _WRONG)
        return cls(tuple(_OBSERVERS[text] for text in (first, *filter(None, others.split(", ")))), "", wrong == _WRONG)


Findings = Mapping[tuple[str, str], Finding]
"""By what is damaged, and the name of the damage."""


def read_document() -> dict[tuple[str, str], Finding]:
    """What the table has."""
    findings = {}
    _, _, table = DOCUMENT.read_text().partition(HEAD)
    for line in table.splitlines():
        thing, names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for name in names.split(_BETWEEN):
            findings[thing, name] = Finding.read(*cells)
    return findings


def write_document(results: Iterable[Result]) -> None:
    """Replaces what the table has of these kinds, and leaves out kinds that there are no more."""
    findings: dict[tuple[str, str], Finding] = read_document()
    findings |= {(result.damage.thing, result.damage.name): Finding.of(result) for result in results}
    text, _, _ = DOCUMENT.read_text().partition(HEAD)
    DOCUMENT.write_text(text + HEAD + "".join(_lines(findings)))


def _lines(findings: Findings) -> Iterable[str]:
    """Damages of one thing that are noticed alike have one line."""
    kinds = [damage for damage in chosen() if (damage.thing, damage.name) in findings]
    things = list(dict.fromkeys(damage.thing for damage in kinds))

    def order(damage: Damage) -> tuple[int, tuple[str, str, str]]:
        return things.index(damage.thing), findings[damage.thing, damage.name].cells

    for (number, cells), alike in groupby(sorted(kinds, key=order), order):
        names = _BETWEEN.join(damage.name for damage in alike)
        yield "| " + " | ".join((things[number], names, *cells)) + " |\n"
