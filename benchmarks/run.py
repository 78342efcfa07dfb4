"""`make bench`: what the pump does in a second, compared with what this machine allows. `--help` lists the choices."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Started as a file, Python puts this directory first on its path instead of the root, which our imports need.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

    from benchmarks.suite import main

    sys.exit(main())
