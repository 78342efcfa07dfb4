"""The maintenance policy's keys, values and errors, and that docs/maintenance.md describes each key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.settings.policy import KEYS, Policy, parse_value, policy_of, require_key, show

DOCUMENT = Path(__file__).parents[3] / "docs" / "maintenance.md"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("rewrite_target_bytes", "64MiB", 64 << 20),
        ("rewrite_target_bytes", "67108864", 64 << 20),
        ("rewrite_strategy", "sort", "sort"),
        ("rewrite_enabled", "false", False),
        ("rewrite_enabled", " yes ", True),
        ("snapshot_retention_hours", "0.5", 0.5),
        ("rewrite_min_input_files", "7", 7),
    ],
)
def test_values_as_people_type_them(key: str, text: str, value: object) -> None:
    assert parse_value(key, text) == value
    assert getattr(policy_of({key: value}), key) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("rewrite_target_bytes", "1kB"),
        ("rewrite_target_bytes", "big"),
        ("rewrite_strategy", "zorder"),
        ("rewrite_enabled", "perhaps"),
        ("rewrite_min_input_files", "1"),
        ("rewrite_min_input_files", "2.5"),
        ("orphan_grace_hours", "0.9"),
        ("orphan_grace_hours", "nan"),
        ("metadata_grace_hours", "0.1"),
        ("snapshot_retention_hours", "-1"),
        ("snapshot_min_retained", "0"),
        ("delete_compaction_ratio", "0"),
        ("delete_compaction_min_rows", ""),
    ],
)
def test_wrong_values_are_refused_with_the_key_and_its_default(key: str, text: str) -> None:
    with pytest.raises(UsageError, match=key) as caught:
        parse_value(key, text)
    assert "default" in caught.value.remedy


def test_an_unknown_key_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(UsageError, match="frequency") as caught:
        require_key("frequency")
    assert all(key in caught.value.remedy for key in KEYS)


def test_a_stored_policy_keeps_what_others_put_there_and_nothing_wrong() -> None:
    assert policy_of({"somebody_elses_key": 1, "rewrite_min_input_files": 9}).rewrite_min_input_files == 9
    with pytest.raises(UsageError, match="orphan_grace_hours") as caught:
        policy_of({"orphan_grace_hours": 0})
    assert "policy set" in caught.value.remedy


def test_what_is_shown_can_be_typed() -> None:
    defaults = Policy()
    for key in KEYS:
        assert parse_value(key, show(getattr(defaults, key))) == defaults.to_json()[key]


def test_every_key_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [key for key, _ in rows] == list(KEYS)
    assert {key: parse_value(key, default) for key, default in rows} == Policy().to_json()
