"""Timeline histories as the server tells them."""

from __future__ import annotations

from mirror_pump.model import Lsn
from mirror_pump.source.stream.timelines import TimelineHistory, parse_history

_FILE = """\
1\t0/5000098\tno recovery target specified

# a comment
3\t16/B374D848\tbefore 2026-11-01 10:00:00+00
"""


def test_a_history_file() -> None:
    assert parse_history(_FILE) == {1: 0x5000098, 3: 0x16B374D848}
    assert parse_history("") == {}


def test_what_is_on_the_history() -> None:
    history = TimelineHistory(4, parse_history(_FILE))
    assert history.contains(4, Lsn(2**60))
    assert history.contains(1, Lsn(0x5000098))
    assert not history.contains(1, Lsn(0x5000099))
    assert not history.contains(2, Lsn(1)), "it was left before this history began, or is another one"
    assert (history.has_ended(3), history.has_ended(4), history.has_ended(2)) == (True, False, False)
