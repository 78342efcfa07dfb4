"""The lake: Iceberg's files, metadata and commits. Knows neither PostgreSQL's stream nor Spark.

Tables without a server are in `mirror_pump.tables`. Their public names were here: for one release they can be imported
from here still, with a DeprecationWarning.
"""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    # The only import that points upwards (tests/unit/test_layers.py). It goes with the next release.
    from mirror_pump import tables

    if name not in tables.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import {name} from mirror_pump.tables", DeprecationWarning, stacklevel=2)
    return getattr(tables, name)
