"""Table metadata that pyiceberg made, as a document."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata as PyicebergMetadata
from pyiceberg.typedef import IcebergBaseModel

from mirror_pump.lake.document.next_metadata import with_next_row_id
from mirror_pump.lake.document.table_metadata import TableMetadata


def document_of(made: PyicebergMetadata) -> TableMetadata:
    """The document, with the next row ID of a table of format version 3."""
    # Its own model of version 3 refuses to be written, since pyiceberg 0.12 writes no files of that version.
    content = IcebergBaseModel.model_dump_json(made)
    return with_next_row_id(TableMetadata.from_json(content.encode()))
