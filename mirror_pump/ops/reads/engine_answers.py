"""What other engines read of the lake's tables, by format version and feature: `make engines` runs them to find out.

The answers are in engine_answers.json beside this module, and nowhere else: docs/readers.md and `connect` show them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")


class Feature(StrEnum):
    """What a table may have that an engine has to read rightly."""

    VALUES = "values"
    LISTS = "lists"
    CHANGED_COLUMNS = "changed-columns"
    PARTITIONS = "partitions"
    PAST = "past-snapshots"
    PAST_DELETES = "past-deletes"
    """Former snapshots that have deletes of their own."""
    POSITION_DELETES = "position-deletes"
    EQUALITY_DELETES = "equality-deletes"
    GLOBAL_DELETES = "global-equality-deletes"
    """Equality deletes that apply to the files of all partitions."""
    VECTORS = "deletion-vectors"
    UPGRADED = "upgraded"
    """Deletion vectors beside position deletes of before an upgrade."""
    MOVED_ROWS = "moved-rows"
    LINEAGE = "row-lineage"
    DEFAULTS = "defaults"
    VARIANT = "variant"


TITLES: Mapping[Feature, str] = {
    Feature.VALUES: "values of all types but lists",
    Feature.LISTS: "lists",
    Feature.CHANGED_COLUMNS: "columns that were added, dropped, renamed or made wider",
    Feature.PARTITIONS: "lake partitions, by each transform",
    Feature.PAST: "past snapshots and branches",
    Feature.PAST_DELETES: "past snapshots with deletes of rows",
    Feature.POSITION_DELETES: "position deletes",
    Feature.EQUALITY_DELETES: "equality deletes",
    Feature.GLOBAL_DELETES: "equality deletes that apply to all partitions",
    Feature.VECTORS: "deletion vectors",
    Feature.UPGRADED: "deletion vectors beside position deletes of before an upgrade",
    Feature.MOVED_ROWS: "files whose rows bring their row lineage along",
    Feature.LINEAGE: "row lineage (`_row_id`, `_last_updated_sequence_number`)",
    Feature.DEFAULTS: "defaults of columns in metadata",
    Feature.VARIANT: "variant columns",
}
"""In the order in which they are shown."""


class Verdict(IntEnum):
    """How an engine reads something, the best first."""

    EXACT = 0
    """Each value of each row, and nothing else."""
    REFUSED = 1
    """It says that it does not read this."""
    WRONG = 2
    """It returns other rows without saying so."""


@dataclass(frozen=True)
class FeatureAnswer:
    """How an engine reads one feature."""

    verdict: Verdict
    text: str = ""
    """The engine's own words of a refusal, or what is wrong."""


@dataclass(frozen=True)
class EngineAnswers:
    """How one engine reads."""

    engine: str
    """As `connect --engine` names it."""
    name: str
    """With its version."""
    answers: Mapping[int, Mapping[Feature, FeatureAnswer]]
    """By format version."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EngineAnswers:
        answers = {
            int(version): {
                Feature(feature): FeatureAnswer(Verdict[answer["verdict"].upper()], answer.get("text", ""))
                for feature, answer in features.items()
            }
            for version, features in document["answers"].items()
        }
        return cls(document["engine"], document["name"], answers)


def engine_answers() -> dict[str, EngineAnswers]:
    """The answers of all engines, by engine."""
    if not FILE.exists():
        return {}
    return {one["engine"]: EngineAnswers.from_json(one) for one in json.loads(FILE.read_text())["engines"]}
