"""How long a property test goes on, and the seed that it draws from: both may come from the environment."""

from __future__ import annotations

import os
import random
import sys

SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "900"))
"""Of each property test that `make soak` runs, not counting what was begun by then and the last comparison."""


def printed_seed() -> int:
    """A seed, printed with how to draw the same again; SEED gives one."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    print(f"to draw the same again: SEED={seed}", file=sys.stderr, flush=True)
    return seed
