"""Searches the models, and prints what breaks without each guard; for the name of a model, the ways in which it breaks.

Exits with 1 if a model breaks with all guards, or does not without one of them.
"""

from __future__ import annotations

import sys

from proofs.models import HEAD, MODELS, Model, rows


def _print_traces(model: Model) -> None:
    for guard in model.guards:
        counterexample = model.searched(without=guard).counterexample
        broken = "nothing" if counterexample is None else counterexample.invariant
        print(f"\nwithout: {guard}\nbreaks: {broken}")
        for number, sentence in enumerate(counterexample.trace if counterexample is not None else (), 1):
            print(f"  {number}. {sentence}")


def main(names: list[str]) -> int:
    """See the module."""
    if unknown := [name for name in names if name not in MODELS]:
        print(f"no model {unknown[0]}: there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    for name in names:
        _print_traces(MODELS[name])
    if not names:
        print("\n".join(HEAD))
        for name in MODELS:
            print("\n".join(rows(name)))
    searched = [MODELS[name] for name in names or MODELS]
    holds = all(model.searched().counterexample is None for model in searched)
    needed = all(model.searched(without=guard).counterexample for model in searched for guard in model.guards)
    return 0 if holds and needed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
