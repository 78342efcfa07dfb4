"""docs/cli-json.schema.json is what the types say that print JSON, and docs/cli-json.md names each of its documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.cli_json import parts
from tests.support.json_schema import SCHEMA, Part, example, mismatches, schema_text

_PAGE = Path(__file__).parents[3] / "docs" / "cli-json.md"


def test_the_schema_is_current() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(parts()), "python -m tests.support.cli_json"


def test_the_page_names_each_document() -> None:
    documents = _PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", documents, re.MULTILINE) == list(parts())


def test_a_key_of_no_type_is_not_passed_over() -> None:
    doctor = parts()["doctor"]
    unknown = Part({**doctor.example, "more": 1}, doctor.keys)
    with pytest.raises(LookupError, match="more"):
        schema_text({"doctor": unknown})


def test_a_docstring_becomes_a_description() -> None:
    definitions = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
    seconds_left = definitions["resyncs"]["properties"]["seconds_left"]
    assert seconds_left == {
        "type": ["number", "null"],
        "description": "At the speed so far; null until something is copied",
    }
    action = definitions["resync"]["properties"]["tables"]["items"]["properties"]["action"]
    assert "`copy`: It is copied again, from the beginning" in action["description"]


@pytest.mark.parametrize("name", parts())
def test_each_example_is_as_the_schema_has_it(name: str) -> None:
    assert mismatches(example(name), name) == []


def test_other_keys_and_types_are_told() -> None:
    document = example("status")
    document["alerts"][0]["more"] = 1
    document["tables"][0]["lag_bytes"] = "984"
    document["resyncs"] = [{}]
    told = mismatches(document, "status")
    assert len(told) == 3
    assert "status.tables[].lag_bytes is string, not integer or null" in told
    assert any(line.startswith("status.alerts[] has the keys ['severity'") for line in told)
    assert any(line.startswith("status.resyncs[] has the keys []") for line in told)
