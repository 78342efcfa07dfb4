"""Runs damages one after the other, and words what was noticed as a table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proofs.damage import catalog, files, metadata
from proofs.damage.damage import DAMAGES, Damage
from proofs.damage.observers import Observation, Observer, Observers
from proofs.damage.small_mirror import SmallMirror

KINDS = (files, metadata, catalog)


@dataclass(frozen=True)
class Result:
    """A damage, and what was noticed of it."""

    damage: Damage
    observation: Observation

    @property
    def noticed(self) -> list[str]:
        """The observers, the first ones first."""
        return [observer.value for observer in Observer if observer in self.observation.texts]

    @property
    def is_defect(self) -> bool:
        """Whether no program notices it, although something is wrong."""
        observation = self.observation
        is_wrong = bool(observation.wrong or observation.wrong_later)
        return not self.noticed and not self.damage.unknowable and (is_wrong or not self.damage.harmless)

    @property
    def row(self) -> str:
        noticed = ", ".join(self.noticed) or ("no program" if self.is_defect else f"no program: {self.damage.reason}")
        wrong = self.observation.wrong and f"wrong: {self.observation.wrong}"
        later = self.observation.wrong_later and f"later: {self.observation.wrong_later}"
        return f"| {self.damage.thing} | {self.damage.name} | {noticed} | {'; '.join(filter(None, (wrong, later)))} |"


def chosen(words: Sequence[str] = ()) -> list[Damage]:
    """The damages whose names have all these words."""
    groups = [kinds.__name__ for kinds in KINDS]
    damages = sorted(DAMAGES, key=lambda damage: groups.index(damage.apply.__module__))
    return [damage for damage in damages if all(word in f"{damage.thing}: {damage.name}" for word in words)]


def run_all(damages: Iterable[Damage]) -> Iterator[Result]:
    """Each of them on the same mirror, which is restored before."""
    memory = Path("/dev/shm")  # noqa: S108 - in memory, if there is such a place
    base = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="mirror-pump-damage-", dir=base) as directory:
        # The server has a user of its own.
        Path(directory).chmod(0o755)
        yield from _run(Path(directory), damages)


def _run(directory: Path, damages: Iterable[Damage]) -> Iterator[Result]:
    with SmallMirror.made(directory) as mirror:
        observers = Observers(mirror)
        for damage in damages:
            mirror.restore()
            damage.apply(mirror)
            yield Result(damage, observers.observe())
