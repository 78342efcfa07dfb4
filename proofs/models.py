"""The models, by name, and what each guard protects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proofs import copy, cutline, exchange, history, publish
from proofs.checker import Search, State, search


@dataclass(frozen=True)
class Model:
    """A model of one part of the protocol."""

    initial: State
    guards: Mapping[str, str]
    """What the proof relies on, with the name of an invariant that breaks without it."""

    def searched(self, without: str | None = None) -> Search:
        """Searches the model with all guards but one."""
        return search(self.initial, frozenset(self.guards) - {without})


def _model(state: type[Any], guards: Mapping[str, str]) -> Model:
    return Model(state(), guards)


MODELS = {
    "publish": _model(publish.Publishing, publish.GUARDS),
    "copy": _model(copy.Copying, copy.GUARDS),
    "exchange": _model(exchange.Exchanging, exchange.GUARDS),
    "cutline": _model(cutline.Retention, cutline.GUARDS),
    "history": _model(history.History, history.GUARDS),
}


HEAD = ("| model | without | breaks | after |", "|---|---|---|---|")


def rows(name: str) -> list[str]:
    """The lines of a model in the printed table. Searches it with all guards, and without each."""
    model = MODELS[name]
    search = model.searched()
    outcome = f"nothing, in {search.states:,} states" if search.counterexample is None else _cells(search)
    without = (f"| `{name}` | {guard} | {_cells(model.searched(without=guard))} |" for guard in model.guards)
    return [f"| `{name}` | | {outcome} | |", *without]


def _cells(search: Search) -> str:
    if search.counterexample is None:
        return "nothing |"
    return f"{search.counterexample.invariant} | {len(search.counterexample.trace)} steps"
