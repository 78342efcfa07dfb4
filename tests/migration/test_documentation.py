"""docs/catalog-schema.md names every table and column of schema modak, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database

DOCUMENT = Path(__file__).parents[2] / "docs" / "catalog-schema.md"


def test_every_column_is_documented_and_no_other(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        migrate(connection)
    existing: dict[str, set[str]] = {}
    for table, column in database.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'modak'"
    ):
        existing.setdefault(table, set()).add(column)
    sections = re.split(r"^### modak\.(\w+)$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    documented = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert documented.keys() == existing.keys()
    for table, columns in existing.items():
        named = set(re.findall(r"`(\w+)`", documented[table]))
        assert columns <= named, f"modak.{table} lacks {sorted(columns - named)}"
        heads = "".join(re.findall(r"^- ((?:`\w+`(?:, )?)+)", documented[table], flags=re.MULTILINE))
        assert set(re.findall(r"`(\w+)`", heads)) <= columns, f"modak.{table} documents columns that it lacks"
