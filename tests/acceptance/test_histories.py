"""Clients of a mirror note what they did and saw, beside kills and crashes, and the history is judged."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import pytest

from proofs.histories.__main__ import judged, linearizable, make_history
from tests.support.made_histories import made_history

pytestmark = pytest.mark.further

_DOORS = {"wait", "frontier", "seam", "lake", "hand", "hybrid", "moment", "feed"}
"""Those by which all is read once more at the end."""


@pytest.mark.timeout(1200)
def test_a_short_history_is_accepted(tmp_path: Path) -> None:
    """Twenty seconds of it. `make histories` makes longer ones, with Spark."""
    options = argparse.Namespace(
        minutes=1 / 3, seed=1, writers=3, pumps=2, pause=0.15, fault_pause=4.0, tasks="threads"
    )
    remarks = make_history(options, tmp_path)
    accepted, page = judged(tmp_path / "history.jsonl")
    assert accepted, page
    assert "compared at frontier" in remarks
    operations = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    read = Counter(operation.get("door") for operation in operations if operation["type"] == "ok")
    assert read.keys() >= _DOORS


def test_porcupine_refuses_a_stale_read(tmp_path: Path) -> None:
    file, history = tmp_path / "history.jsonl", made_history()
    file.write_text("\n".join(map(json.dumps, history)))
    accepted, words = linearizable(file)
    if words.startswith("not asked"):
        pytest.skip(f"porcupine cannot be had here: {words}")
    assert accepted, words
    (first, second) = (each for each in history if each["type"] == "ok" and each.get("door") == "wait")
    second["value"] = first["value"]
    file.write_text("\n".join(map(json.dumps, history)))
    accepted, words = linearizable(file)
    assert not accepted
    assert words.startswith("Illegal"), words
