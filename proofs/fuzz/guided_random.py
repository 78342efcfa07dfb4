"""Random choices that are made by the bytes of an input, so that a fuzzer's changes of bytes change what is chosen."""

from __future__ import annotations

from random import Random

_FRACTION_BYTES = 2


class GuidedRandom(Random):
    """Takes each choice from the next bytes; zeros once they are used up."""

    def __init__(self, content: bytes) -> None:
        super().__init__(0)
        self._content = content
        self._at = 0

    def _taken(self, size: int) -> int:
        taken = self._content[self._at : self._at + size].ljust(size, b"\0")
        self._at += size
        return int.from_bytes(taken, "big")

    def random(self) -> float:
        """From 0 up to 1, in steps of 1/65536."""
        return self._taken(_FRACTION_BYTES) / (1 << 8 * _FRACTION_BYTES)

    def getrandbits(self, k: int, /) -> int:
        """A number of `k` bits, the lowest of the next bytes."""
        return self._taken((k + 7) // 8) & ((1 << k) - 1)

    def _randbelow(self, n: int) -> int:
        # The inherited one draws again until a number fits: without end, once all are zeros or all are too large.
        return self._taken((n.bit_length() + 7) // 8) % n
