"""Damages a small mirror in every way, and prints who noticed.

Arguments: words that the names of damages have to contain. With `--document`, what was noticed replaces these lines in
the table of docs/damage.md. Exits with 1 if no program notices a damage that matters.
"""

from __future__ import annotations

import logging
import sys

from proofs.damage.document import write_document
from proofs.damage.report import Result, chosen, run_all

_DOCUMENT = "--document"


def main(arguments: list[str]) -> int:
    """See the module."""
    words = [word for word in arguments if word != _DOCUMENT]
    logging.disable(logging.CRITICAL)
    results: list[Result] = []
    for result in run_all(chosen(words)):
        results.append(result)
        print(f"{result.row}", flush=True)
        for observer, text in result.observation.texts.items():
            print(f"    {observer}: {text[:300]}", file=sys.stderr, flush=True)
    if _DOCUMENT in arguments:
        write_document(results)
    unnoticed = [result for result in results if result.is_defect]
    print(f"{len(results)} damages, {len(unnoticed)} that no program notices", file=sys.stderr)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
