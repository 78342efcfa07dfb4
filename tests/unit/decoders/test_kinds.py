"""A kind of type is one entry of FACTS; the modules below are the only ones that have code for single kinds."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from decoders.kinds import FACTS

ROOT = Path(__file__).parents[3]

ALWAYS = frozenset({"decoders/kinds.py", "decoders/pgtypes.py", "decoders/text.py", "decoders/printing.py"})
"""What each new kind needs: its entry, the types that become it, a parser, a printer."""
OPTIONAL = frozenset(
    {
        "mirror_pump/lake/format/bounds.py",  # bounds that are not a struct's bytes
        "mirror_pump/lake/format/initial_defaults.py",  # a column's default as JSON; without: files are filled
        "mirror_pump/ops/changes/printed_rows.py",  # as PostgreSQL prints it, if print_values does not
        "mirror_pump/ops/reads/cloud_engines.py",  # types of which an engine has another range
        "mirror_pump/ops/ingest/convert/conversions.py",  # a faster way than PostgreSQL's own conversion
        "mirror_pump/source/heap/heap_side.py",  # how PostgreSQL tells that a value does not fit
        "mirror_pump/source/heap/packed_columns.py",  # a copy of bytes in place of text
    }
)
CHOICES = frozenset(
    {
        "decoders/columns.py",
        "mirror_pump/source/relations/column_choices.py",
        "mirror_pump/source/relations/column_texts.py",
    }
)
"""Kinds with parameters, and what may be chosen for a column."""
SCALARS = [kind.name for kind in Kind if kind not in (Kind.LIST, Kind.STRUCT, Kind.MAP)]


def test_a_kind_is_named_in_few_modules() -> None:
    # A column with a fixed type, as those of feeds are, is no decision.
    named = re.compile(rf"(?<!ColumnType\()\bKind\.({'|'.join(SCALARS)})\b")
    modules = {
        str(path.relative_to(ROOT))
        for room in ("decoders", "mirror_pump")
        for path in (ROOT / room).rglob("*.py")
        if named.search(path.read_text())
    }
    assert modules - CHOICES == ALWAYS | OPTIONAL


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_has_an_entry(kind: Kind) -> None:
    facts = FACTS[kind]
    parameters = kind in (Kind.DECIMAL, Kind.LIST, Kind.STRUCT, Kind.MAP)
    assert (facts.arrow is None) is parameters
    if not parameters:
        assert isinstance(ColumnType(kind).arrow, pa.DataType)
        assert facts.duckdb
    assert facts.widens_to is None or FACTS[facts.widens_to].packing
    assert not facts.key_bytes or not facts.is_bytes
