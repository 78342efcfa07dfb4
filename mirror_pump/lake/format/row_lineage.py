"""The columns by which a row can be followed through a table's snapshots (Iceberg spec, row lineage, format version 3).

A data file may have them, for rows that came from other files. A row without a value gets it from its file: the ID of
the file's first row plus its number in the file, and the file's data sequence number.
"""

from __future__ import annotations

ROW_ID = "_row_id"
"""Stays with a row for as long as the row is in the table."""
LAST_UPDATED = "_last_updated_sequence_number"
"""Sequence number of the commit that changed the row last."""
ROW_ID_FIELD = 2147483540
LAST_UPDATED_FIELD = 2147483539
"""Field IDs (Iceberg spec, reserved field IDs)."""
