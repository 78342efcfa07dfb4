"""Only a few rooms know the keys of Iceberg's metadata: every other module uses their views."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, Total, summarise
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.schema import LakeSchema

_PACKAGE = Path(__file__).parents[4] / "mirror_pump"
_HOMES = ("lake/document/", "lake/manifests/", "tables/metadata/", "lake/format/schema.py", "lake/format/puffin.py")
"""A schema's JSON is a part of the document, and the module that writes columns describes them. Footers of Puffin files
have keys of the same names."""

_ALSO_TABLE_PROPERTY = {"format-version"}
"""A key of the document that is also the name of a table property."""
_IN_OTHER_ENTRIES = {
    "parent-snapshot-id",
    "manifest-list",
    "schema-id",
    "spec-id",
    "metadata-file",
    "max-snapshot-age-ms",
    "min-snapshots-to-keep",
    "max-ref-age-ms",
    "identifier-field-ids",
}
"""Keys of the document's entries that a new document does not have."""
_AS_SUBSCRIPT = {"snapshots", "refs", "summary", "properties", "schemas", "statistics"}
"""Keys that are ordinary words elsewhere: they only count in a look-up in a mapping."""
_SUMMARY = re.compile(r"(total|added|removed|deleted)-[a-z-]*")


def _keys() -> set[str]:
    """Keys that are no ordinary words, so that they always mean the document."""
    document = TableMetadata.new(LakeSchema(0, (), ()), "file:///t", {}, 0, format_version=3).document
    snapshot = Snapshot.new(1, None, 1, 0, summarise(FileCounts(), FileCounts(), None, {}), "", 0, (0, 1)).document
    found = {*document, *snapshot} | _IN_OTHER_ENTRIES
    return {key for key in found if "-" in key} - _ALSO_TABLE_PROPERTY


def _raw_keys(tree: ast.AST) -> Iterator[str]:
    """Each use of a raw key, or of a view's document, with its line."""
    keys = _keys()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in keys or _SUMMARY.fullmatch(node.value):
                yield f"{node.lineno}: {node.value}"
        elif isinstance(node, ast.Attribute) and node.attr == "document":
            yield f"{node.lineno}: document"
        elif isinstance(node, ast.Subscript):
            yield from _word(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            yield from (word for asked in node.args[:1] for word in _word(asked))


def _word(asked: ast.expr) -> Iterator[str]:
    if isinstance(asked, ast.Constant) and asked.value in _AS_SUBSCRIPT | _ALSO_TABLE_PROPERTY:
        yield f"{asked.lineno}: {asked.value}"


def test_no_other_module_uses_raw_keys_of_iceberg_metadata() -> None:
    paths = [(path, path.relative_to(_PACKAGE).as_posix()) for path in _PACKAGE.rglob("*.py")]
    assert all(any(name.startswith(home) for _, name in paths) for home in _HOMES), "a home moved: name its new place"
    found = [
        f"{name}:{use}"
        for path, name in paths
        if not name.startswith(_HOMES)
        for use in _raw_keys(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "statement",
    [
        "metadata['snapshots'][-1]",
        "snapshot.get('summary', {})",
        "{'snapshot-id': 7}",
        "'parent-snapshot-id' in snapshot",
        f"summary[{Total.RECORDS.value!r}]",
        "summary.get(f'total-{name}')",
        "document['format-version']",
        "table.metadata.document['location']",
    ],
)
def test_a_raw_key_is_found(statement: str) -> None:
    assert list(_raw_keys(ast.parse(statement))) != []


def test_words_of_other_matters_are_none() -> None:
    others = "rows['schema'], {'properties': 1}, found.summary, settings['format'], {'format-version': '2'}"
    assert list(_raw_keys(ast.parse(others))) == []
