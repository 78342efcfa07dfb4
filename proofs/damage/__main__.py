"""Damages a small mirror in every way, and prints who noticed: the table of docs/damage.md.

Arguments: words that the names of damages have to contain. Exits with 1 if nobody notices a damage.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from proofs.damage.report import Result, run_all


def main(words: list[str]) -> int:
    """See the module."""
    logging.disable(logging.CRITICAL)
    base = Path("/dev/shm")  # noqa: S108 - in memory, if there is such a place
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="mirror-pump-damage-", dir=base if base.is_dir() else None) as directory:
        Path(directory).chmod(0o755)
        for result in run_all(Path(directory), words):
            results.append(result)
            print(f"{result.row}", flush=True)
            for observer, text in result.observation.texts.items():
                print(f"    {observer}: {text[:300]}", file=sys.stderr, flush=True)
    unnoticed = [result for result in results if result.is_defect]
    print(f"{len(results)} damages, {len(unnoticed)} that nobody notices", file=sys.stderr)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
