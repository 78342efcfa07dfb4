"""Durations on the command line."""

from __future__ import annotations

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.runtime.durations import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("5min", 300),
        ("5 minutes", 300),
        ("2h 30min", 9000),
        ("1.5 days", 129600),
    ],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert seconds_of(text, "--max-lag") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "5 months", "5min or so", "s", "1h-2"])
def test_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="--max-lag"):
        seconds_of(text, "--max-lag")
