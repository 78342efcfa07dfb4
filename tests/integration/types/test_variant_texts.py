"""Documents that became variants and texts again are those that a real PostgreSQL prints for the jsonb."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.variant import document_texts, encoded_documents
from mirror_pump.testing.database import Database
from tests.support.json_documents import DOCUMENTS, NUMBERS, STRINGS, can_be_held

_JSONB = """
CREATE FUNCTION pg_temp.jsonb_text(document text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN document::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$
"""
"""What PostgreSQL prints for the jsonb of a text; NULL if it refuses it. The text has to be json."""


def jsonb_texts(database: Database, texts: Sequence[str]) -> list[str | None]:
    with database.session() as connection:
        connection.execute(_JSONB.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").encode())
        query = (
            b"SELECT document::json::text, pg_temp.jsonb_text(document)"
            b" FROM unnest(%s::text[]) WITH ORDINALITY AS _(document, place) ORDER BY place"
        )
        rows = connection.execute(query, [list(texts)]).fetchall()
    assert [text for text, _ in rows] == list(texts)
    return [jsonb for _, jsonb in rows]


def assert_exact(database: Database, texts: Sequence[str]) -> None:
    jsonb = jsonb_texts(database, texts)
    holdable = [can_be_held(text, printed) for text, printed in zip(texts, jsonb, strict=True)]
    variants, flags = encoded_documents(pa.array(texts, pa.string()))
    variants.validate(full=True)
    assert (flags is None) == all(holdable)
    if flags is not None:
        assert flags.to_pylist() == [not is_held for is_held in holdable]
    held_texts = [printed if is_held else None for printed, is_held in zip(jsonb, holdable, strict=True)]
    assert document_texts(variants).to_pylist() == held_texts
    # Equal documents have equal bytes, whatever their texts were, and others do not.
    assert encoded_documents(pa.array(held_texts, pa.string()))[0].equals(variants)
    places: dict[tuple[bytes, bytes], str] = {}
    for variant, text in zip(variants.to_pylist(), held_texts, strict=True):
        if variant is not None:
            assert text is not None
            assert places.setdefault((variant["metadata"], variant["value"]), text) == text
    assert len(places) == len({text for text in held_texts if text is not None})


@pytest.mark.further
@settings(max_examples=25)
@given(texts=st.lists(DOCUMENTS, min_size=1, max_size=30))
def test_documents_are_held_exactly_or_not_at_all(database: Database, texts: list[str]) -> None:
    assert_exact(database, texts)


@settings(max_examples=20)
@given(texts=st.one_of(st.lists(NUMBERS, min_size=20, max_size=60), st.lists(STRINGS, min_size=1, max_size=10)))
def test_scalars_are_held_exactly_or_not_at_all(database: Database, texts: list[str]) -> None:
    assert_exact(database, texts)


@pytest.mark.further
def test_rare_documents(database: Database) -> None:
    names = [f"{number:x}" for number in range(70_000)]
    assert_exact(
        database,
        [
            "[" * 500 + "]" * 500,
            "[" * 501 + "]" * 501,
            '{"a":' * 499 + "[]" + "}" * 499,
            '{"a":' * 500 + "[]" + "}" * 500,
            "[" * 5000 + "1" + "]" * 5000,
            "[" + "[]," * 600 + "[]]",
            "9" * 100_000,
            "1e-400",
            "0e-400",
            "-0",
            "-0.00",
            "0e400",
            "0e1073741822",
            "1e1000000000",
            "1e" + "0" * 50_000 + "3",
            '"' + "a" * 300_000 + '"',
            '"' + "\\n" * 300_000 + '"',
            "[" + ",".join(map(str, range(70_000))) + "]",
            "{" + ",".join(f'"{name}":[]' for name in names) + "}",
            '[{"b": 1, "a": 2}, {"a": 3}, {"é": 1, "e\u0301": 2, "\\u00e8": 3}]',
            '{"a": 1, "\\u0061": 2}',
            "[" + ",".join(['{"a": 1, "b": [1, 2, {"c": null}]}'] * 30_000) + "]",
        ],
    )
