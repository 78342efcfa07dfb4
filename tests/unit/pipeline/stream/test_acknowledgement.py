"""What the slot may be told, and when."""

from __future__ import annotations

from mirror_pump.model import Lsn
from mirror_pump.pipeline.stream.receiver import Acknowledgement


def test_a_frontier_waits_until_the_stream_has_passed_its_publish() -> None:
    acknowledgement = Acknowledgement()
    acknowledgement.landed(Lsn(100), Lsn(150))
    acknowledgement.landed(Lsn(200), Lsn(260))
    acknowledgement.passed(Lsn(149))
    assert acknowledgement.frontier == 0, "the server ignores it"
    acknowledgement.passed(Lsn(150))
    assert acknowledgement.frontier == 100
    acknowledgement.passed(Lsn(259))
    assert acknowledgement.frontier == 100
    acknowledgement.passed(Lsn(300))
    assert acknowledgement.frontier == 200


def test_it_never_goes_back() -> None:
    acknowledgement = Acknowledgement()
    acknowledgement.landed(Lsn(200), Lsn(210))
    acknowledgement.landed(Lsn(200), Lsn(220))
    acknowledgement.passed(Lsn(215))
    acknowledgement.passed(Lsn(10))
    assert acknowledgement.frontier == 200
