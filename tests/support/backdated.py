"""Makes tables and their files older than any grace."""

from __future__ import annotations

import orjson

from tests.support.local_files import path_of
from tests.support.maintenance import Maintained, T, age

OLD = 24 * 365
"""Hours."""


def backdate_history(maintained: Maintained, hours: float) -> None:
    """Makes the table's snapshots and files that much older, by changing its metadata."""
    location = maintained.mirror.location(T)
    path = path_of(location)
    document = orjson.loads(path.read_bytes())
    shift = round(hours * 3_600_000)
    for snapshot in document["snapshots"]:
        snapshot["timestamp-ms"] -= shift
    for entry in (*document["snapshot-log"], *document["metadata-log"]):
        entry["timestamp-ms"] -= shift
    document["last-updated-ms"] -= shift
    path.write_bytes(orjson.dumps(document))
    age(maintained.files(T), hours)
