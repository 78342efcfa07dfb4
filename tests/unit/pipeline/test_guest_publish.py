"""A guest publishes in the transaction of its caller, and cannot do what only the leader may."""

from __future__ import annotations

import pytest

from mirror_pump.pipeline.publish.frontier_transaction import FrontierTransaction
from mirror_pump.pipeline.publish.guest_publish import GuestPublisher
from mirror_pump.pipeline.publish.publish_transaction import PublishTransaction
from mirror_pump.pipeline.publish.publisher import Publisher


@pytest.mark.parametrize("name", ["move_frontier", "go_live", "swap_in", "fail"])
def test_only_the_leaders_transaction_moves_the_frontier(name: str) -> None:
    assert hasattr(FrontierTransaction, name)
    assert not hasattr(PublishTransaction, name)
    assert not hasattr(GuestPublisher, name)


def test_a_guest_cannot_publish() -> None:
    assert hasattr(Publisher, "publish")
    assert not hasattr(GuestPublisher, "publish")
    assert not issubclass(GuestPublisher, Publisher)
