"""Whether anything was written to the server since a thread last looked at its catalogs."""

from __future__ import annotations

import time

_ROUND_EVERY = 60.0
"""Seconds after which a round is made although nothing was written."""


class UnchangedServer:
    """Tells rounds that would find nothing, as no transaction has committed since one that left nothing to do.

    Invariant: `_settled` is None, or the text of a database snapshot before a round that left nothing to do. Whatever
    commits a write has a transaction number. It was running in that snapshot, and the snapshot names it, or it is not
    below the snapshot's end. Either way the snapshot after its commit has another text.
    """

    def __init__(self) -> None:
        self._settled: str | None = None
        self._current = ""
        self._round_at = 0.0

    def skips(self, snapshot: str) -> bool:
        """Whether the next round may be left out. As a precaution, a round is made from time to time all the same.
        `snapshot`: the text of a database snapshot that was taken before the round."""
        self._current = snapshot
        now = time.monotonic()
        if self._current == self._settled and now - self._round_at < _ROUND_EVERY:
            return True
        self._settled, self._round_at = None, now
        return False

    def nothing_left(self) -> None:
        """The round that began with the last call of `skips` has left nothing to do."""
        self._settled = self._current
