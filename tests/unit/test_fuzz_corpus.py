"""The inputs that fuzzing has left, which reach most of what reads bytes of others, break no promise."""

from __future__ import annotations

import pytest

from proofs.fuzz.guided_random import GuidedRandom
from proofs.fuzz.targets import NAMES, corpus, target


@pytest.mark.parametrize("name", NAMES)
def test_no_input_of_a_corpus_breaks_a_promise(name: str) -> None:
    inputs = [*corpus(name)]
    assert inputs
    for path in inputs:
        target(name)(path.read_bytes())


def test_choices_are_those_of_the_bytes() -> None:
    chosen = GuidedRandom(bytes([3, 0, 0x80, 0]))
    assert (chosen.randrange(100), chosen.choice("ab"), chosen.random()) == (3, "a", 0.5)
    assert [chosen.randrange(7) for _ in range(3)] == [0, 0, 0]
