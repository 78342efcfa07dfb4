"""Background work waits for urgent work, but not for ever, and not for what has ended."""

from __future__ import annotations

import threading
import time

from mirror_pump.pipeline.flow.urgent_work import UrgentWork

LONG = 600.0
"""Seconds that no test waits."""


def never() -> bool:
    return False


def test_without_urgent_work_nobody_waits() -> None:
    urgent = UrgentWork(longest=LONG, apart=LONG)
    urgent.await_end(never)


def test_it_begins_once_the_last_piece_has_ended() -> None:
    urgent = UrgentWork(longest=LONG, apart=0.0)
    began = threading.Event()

    def background() -> None:
        urgent.await_end(never)
        began.set()

    waiting = threading.Thread(target=background, daemon=True)
    with urgent.under_way():
        with urgent.under_way():
            waiting.start()
        assert not began.wait(0.6)
    assert began.wait(LONG)
    waiting.join()


def test_a_gap_between_two_pieces_is_no_end() -> None:
    urgent = UrgentWork(longest=0.3, apart=LONG)
    with urgent.under_way():
        pass
    began = time.monotonic()
    urgent.await_end(never)
    assert time.monotonic() - began >= 0.3


def test_it_waits_for_so_long_at_most() -> None:
    urgent = UrgentWork(longest=0.1, apart=LONG)
    with urgent.under_way():
        urgent.await_end(never)


def test_who_is_to_stop_does_not_wait() -> None:
    urgent = UrgentWork(longest=LONG, apart=LONG)
    stop = threading.Event()
    with urgent.under_way():
        waiting = threading.Thread(target=urgent.await_end, args=(stop.is_set,), daemon=True)
        waiting.start()
        stop.set()
        waiting.join(LONG)
    assert not waiting.is_alive()
