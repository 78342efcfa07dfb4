"""Which transactions the messages of the open segment belong to, for change feeds. Protocol logic without I/O."""

from __future__ import annotations

from array import array

import numpy as np

from decoders.change_events import SegmentTransactions
from mirror_pump.model import Lsn
from mirror_pump.pipeline.flow.batches import StreamTransaction


class OpenTransactions:
    """The transactions of the open segment, and how many row changes of the current one were taken.

    Invariant: the number of a row change in its transaction does not depend on where segments end. It orders all
    changes of the transaction, those of other tables included.
    """

    def __init__(self) -> None:
        self.current = StreamTransaction(Lsn(0), 0, 0)
        self.rows = 0
        """Row changes of the current transaction that were taken."""
        self._is_in_segment = False
        self._clear()

    def _clear(self) -> None:
        self._numbers = array("q")
        """Five for each transaction: as the fields of SegmentTransactions."""
        self._origins: list[str | None] = []
        self._is_in_segment = False

    def begin(self, transaction: StreamTransaction) -> None:
        """Row changes from here on belong to this transaction."""
        self.current, self.rows, self._is_in_segment = transaction, 0, False

    def from_origin(self, name: str) -> None:
        """The current transaction came from elsewhere."""
        current = self.current
        self.current = StreamTransaction(current.final_lsn, current.xid, current.commit_time_us, name)

    def take(self, place: int, rows: int) -> None:
        """Row changes of the current transaction were added to the segment, which had `place` messages."""
        if not self._is_in_segment:
            current = self.current
            self._numbers.extend((place, current.final_lsn, current.xid, current.commit_time_us, self.rows))
            self._origins.append(current.origin)
            self._is_in_segment = True
        self.rows += rows

    def truncated(self) -> None:
        """A TRUNCATE has a number as a row change has."""
        self.rows += 1
        self._is_in_segment = False

    def emitted(self, *, is_needed: bool) -> SegmentTransactions | None:
        """The transactions of the segment, if they are needed; the next one begins."""
        result = None
        if is_needed:
            begins, lsns, xids, committed_at, rows_before = np.array(self._numbers, np.int64).reshape(-1, 5).T.copy()
            result = SegmentTransactions(begins, lsns, xids, committed_at, rows_before, tuple(self._origins))
        self._clear()
        return result
