"""The format versions of Iceberg that the mirror writes."""

from __future__ import annotations

from typing import Final

FORMAT_VERSION: Final = 2
"""Format version of new tables, and of manifests and their lists in tables of this version and before."""
VECTOR_VERSION: Final = 3
"""The format version, the newest that is written here, whose tables have deletion vectors and row lineage."""
