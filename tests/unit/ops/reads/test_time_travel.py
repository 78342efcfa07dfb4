"""What `--at` names."""

from __future__ import annotations

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.model import Lsn
from mirror_pump.ops.reads.time_travel import PastPoint, parse_when


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("16/B374D848", PastPoint(Lsn(0x16_B374D848), None)),
        ("1970-01-01T00:00:02Z", PastPoint(None, 2000)),
        ("1970-01-01 01:00:02+01:00", PastPoint(None, 2000)),
        ("1970-01-01 00:00:02", PastPoint(None, 2000)),
    ],
)
def test_points_are_positions_or_times(text: str, when: PastPoint) -> None:
    assert parse_when(text) == when


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(UsageError, match="neither a WAL position nor a time"):
        parse_when("yesterday")
