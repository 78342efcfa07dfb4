"""Service threads: no wake-up is lost, and a stop ends every wait."""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue

import pytest

from mirror_pump.errors import SourceError
from mirror_pump.pipeline.flow.events import Event, ThreadFailed
from mirror_pump.pipeline.flow.session_context import ThreadStopped, session_thread
from mirror_pump.runtime.service_thread import ServiceThread, thread_failures

_FOREVER = 3600.0
_DEADLINE = 30.0


def test_a_wake_up_during_a_round_starts_the_next_round_at_once() -> None:
    rounds: SimpleQueue[int] = SimpleQueue()
    in_round, go_on = threading.Event(), threading.Event()

    def run() -> None:
        count = 0
        while thread.next_round():
            count += 1
            rounds.put(count)
            in_round.set()
            assert go_on.wait(_DEADLINE)
            thread.await_wake(_FOREVER)

    with (thread := ServiceThread("test", run)):
        assert in_round.wait(_DEADLINE)
        thread.wake()
        go_on.set()
        assert [rounds.get(timeout=_DEADLINE), rounds.get(timeout=_DEADLINE)] == [1, 2]


@pytest.mark.parametrize("wait", ["await_wake", "pause"])
def test_a_stop_ends_a_wait(wait: str) -> None:
    waits = threading.Event()

    def run() -> None:
        while thread.next_round():
            waits.set()
            getattr(thread, wait)(_FOREVER)

    thread = ServiceThread("test", run)
    thread.start()
    assert waits.wait(_DEADLINE)
    thread.stop()
    assert "test" not in {running.name for running in threading.enumerate()}


def test_a_stop_interrupts_what_the_thread_waits_for() -> None:
    jobs: SimpleQueue[str | None] = SimpleQueue()
    done: list[str | None] = []
    with ServiceThread("test", lambda: done.append(jobs.get()), interrupt=lambda: jobs.put(None)):
        pass
    assert done == [None]


def test_a_thread_may_stop_itself() -> None:
    ended = threading.Event()

    def run() -> None:
        thread.stop()
        assert not thread.next_round()
        ended.set()

    with (thread := ServiceThread("test", run)):
        assert ended.wait(_DEADLINE)


def test_an_error_of_a_session_thread_reaches_the_loop_and_a_stop_does_not() -> None:
    inbox: SimpleQueue[Event] = SimpleQueue()

    def fail(error: BaseException) -> None:
        raise error

    error = SourceError("as planned")
    for raised in (ThreadStopped(), error):
        with session_thread("test", partial(fail, raised), inbox):
            pass
    event = inbox.get(timeout=_DEADLINE)
    assert isinstance(event, ThreadFailed)
    assert event.error is error
    assert inbox.empty()


def test_an_error_that_a_thread_cannot_go_on_after_reaches_the_loop() -> None:
    inbox: SimpleQueue[Event] = SimpleQueue()

    def run() -> None:
        raise ValueError("as planned")

    with session_thread("test", run, inbox, restarts=False):
        event = inbox.get(timeout=_DEADLINE)
    assert isinstance(event, ThreadFailed)
    assert isinstance(event.error, ValueError)


def test_a_thread_that_ends_by_an_unexpected_error_works_again_and_is_named() -> None:
    inbox: SimpleQueue[Event] = SimpleQueue()
    again = threading.Event()
    rounds: list[int] = []

    def run() -> None:
        rounds.append(len(rounds))
        if rounds == [0]:
            raise ValueError("as planned")
        again.set()
        while thread.next_round():
            thread.await_wake(_DEADLINE)

    with (thread := session_thread("test-restart", run, inbox)):
        assert again.wait(_DEADLINE)
        (failure,) = [failure for failure in thread_failures() if failure.thread == "test-restart"]
        assert (failure.error, failure.ends) == ("ValueError: as planned", 1)
    assert inbox.empty()
    assert [failure for failure in thread_failures() if failure.thread == "test-restart"] == []


def test_a_thread_that_is_stopped_does_not_work_again_after_an_error() -> None:
    rounds: list[int] = []

    def run() -> None:
        rounds.append(len(rounds))
        thread.pause(_DEADLINE)
        raise ValueError("its connection is closed")

    with (thread := ServiceThread("test-stopped", run)):
        pass
    assert rounds == [0]
