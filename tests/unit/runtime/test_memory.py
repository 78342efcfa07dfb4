"""Imports without Python's garbage collector."""

from __future__ import annotations

import gc

import pytest

from mirror_pump.runtime.memory import without_collector


def test_the_collector_is_off_in_the_block_and_on_after_it() -> None:
    assert gc.isenabled()
    with without_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_failed_import_switches_it_on_again() -> None:
    with pytest.raises(ImportError), without_collector():
        raise ImportError
    assert gc.isenabled()


def test_where_it_is_off_it_stays_off() -> None:
    gc.disable()
    try:
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_only_a_program_keeps_what_is_there_for_good() -> None:
    known = gc.get_freeze_count()
    with without_collector():
        pass
    assert gc.get_freeze_count() == known
