"""What the timelines and positions of the lake's snapshots say about the server's history."""

from __future__ import annotations

import pytest

from mirror_pump.lake.contents.newer_metadata import NewerMetadata, Promise
from mirror_pump.model import Lsn
from mirror_pump.pipeline.session.lost_publishes import CatalogPosition, is_lost, was_published
from mirror_pump.source.stream.timelines import TimelineHistory

TWICE_PROMOTED = TimelineHistory(3, {1: Lsn(500), 2: Lsn(700)})


@pytest.mark.parametrize(
    ("frontier", "timeline", "lost"),
    [
        pytest.param(500, 1, False, id="before the switch"),
        pytest.param(501, 1, True, id="behind the switch, wherever the server is by now"),
        pytest.param(650, 2, False, id="on the timeline in between, which the catalog does not record"),
        pytest.param(701, 2, True, id="behind the second switch"),
        pytest.param(400, 3, True, id="on another timeline of the same number: the catalog would record ours"),
        pytest.param(400, 4, True, id="on a timeline that the server never had"),
        pytest.param(600, None, True, id="a snapshot without a timeline is of the recorded one"),
    ],
)
def test_after_promotions(frontier: int, timeline: int | None, lost: bool) -> None:
    assert is_lost(Promise(Lsn(frontier), timeline), TWICE_PROMOTED, recorded=1) is lost


@pytest.mark.parametrize(
    ("frontiers", "timeline", "acknowledged", "published"),
    [
        pytest.param([900], 3, 800, False, id="a pump may have been killed before it published this"),
        pytest.param([850, 900], 3, 800, True, id="somebody built on a publish that the catalog does not know"),
        pytest.param([900], 3, 900, True, id="the slot was told that it was published"),
        pytest.param([800, 900], 3, 800, False, id="somebody built on what the catalog knows"),
        pytest.param([1001], 3, 800, True, id="the server has not been there"),
        pytest.param([600], 1, 800, True, id="a former primary went on after the switch"),
        pytest.param([400], 1, 800, False, id="the table's history"),
        pytest.param([300], 4, 800, True, id="this server is the former primary"),
    ],
)
def test_on_the_recorded_timeline(frontiers: list[int], timeline: int, acknowledged: int, published: bool) -> None:
    *earlier, newest = (Promise(Lsn(frontier), timeline) for frontier in frontiers)
    state = NewerMetadata("file:///m", newest, tuple(earlier))
    position = CatalogPosition(3, Lsn(800), 0.0, Lsn(1000), Lsn(acknowledged))
    assert was_published(state, TWICE_PROMOTED, position) is published
