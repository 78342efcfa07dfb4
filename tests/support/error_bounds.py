"""How long a property test runs, and its seed: both may come from the environment."""

from __future__ import annotations

import os
import random
import sys

SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "900"))
"""The duration of each property test in `make soak`, without what has begun by then and the last comparison."""


def printed_seed(default: int | None = None) -> int:
    """A seed, printed with how to use it again; SEED sets it. Without a default, a random one."""
    seed = int(os.environ.get("SEED") or (random.SystemRandom().randrange(2**32) if default is None else default))
    print(f"to draw the same again: SEED={seed}", file=sys.stderr, flush=True)
    return seed
