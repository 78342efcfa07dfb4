"""Imports without Python's garbage collector, and what the C library keeps."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys

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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc alone says what malloc() keeps")
def test_a_worker_keeps_the_buffers_that_a_task_freed_for_the_next_one() -> None:
    def kept(prepare: str) -> int:
        program = (
            f"import ctypes\nfrom mirror_pump.runtime.memory import keep_freed_memory\n{prepare}\n{_FREES_BUFFERS}"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert kept("keep_freed_memory()") >= _BUFFERS * _BUFFER_BYTES
    assert kept("") < _BUFFER_BYTES


_BUFFERS, _BUFFER_BYTES = 7, 16 << 20
"""As the batches of a row group of texts: more than their 64 MiB."""
_FREES_BUFFERS = f"""
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
c.mallinfo2.restype = Info
for buffer in [c.malloc({_BUFFER_BYTES}) for _ in range({_BUFFERS})]:
    c.free(buffer)
print(c.mallinfo2().fordblks)
"""
"""Prints how many bytes malloc() has that are free."""
