"""A kind of damage: a function that changes one thing of a mirror, and what it is a damage of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proofs.damage.small_mirror import SmallMirror

Apply = Callable[["SmallMirror"], None]


@dataclass(frozen=True)
class Damage:
    """One kind of damage."""

    thing: str
    """What is damaged: a row of the table begins with it."""
    name: str
    """What becomes of it."""
    apply: Apply
    harmless: str = ""
    """Why nothing has to notice it: no reader and no commit is wrong. Empty: something has to."""
    unknowable: str = ""
    """Why no program can notice it, although something is wrong."""

    @property
    def reason(self) -> str:
        """Why no program notices it."""
        return self.harmless or self.unknowable


DAMAGES: list[Damage] = []
"""All kinds, in the order of the table."""


def damage(thing: str, name: str, harmless: str = "", unknowable: str = "") -> Callable[[Apply], Apply]:
    """Enters a function as a kind of damage."""

    def enter(apply: Apply) -> Apply:
        DAMAGES.append(Damage(thing, name, apply, harmless, unknowable))
        return apply

    return enter
