"""Which form of position deletes a table has."""

from __future__ import annotations

from mirror_pump.lake.deletes.delete_form import DeleteForm
from mirror_pump.lake.deletes.position_files import PositionFiles
from mirror_pump.lake.deletes.vectors import Vectors
from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION

_FORMS: dict[int, DeleteForm] = {FORMAT_VERSION: PositionFiles(), VECTOR_VERSION: Vectors()}


def form_of(format_version: int) -> DeleteForm:
    """The form of tables of a format version that the mirror writes: one object for each."""
    return _FORMS[format_version]
