"""Fills cells that pgoutput left out because a large (TOASTed) value did not change.

The value is in the old tuple when the server sent one with it, or in an earlier image of the same row in the segment;
otherwise outside the segment, under the key that the row had when the segment began.
"""

from __future__ import annotations

import numpy as np

from decoders.tuples import TEXT, UNCHANGED, Cells, Changes, Ints


def from_old_tuples(changes: Changes, column: int) -> Cells:
    """The new tuples' cells of `column`, unchanged ones taken from the message's old tuple where it holds the value.

    An old tuple that holds only the key has NULL for other columns, which says nothing: only text is taken.
    """
    cells = changes.new[column]
    unchanged = cells.kinds == UNCHANGED
    if not unchanged.any() or not len(changes.old_messages):
        return cells
    places = changes.old_places[changes.new_messages]
    old = changes.old[column].take(places)
    return cells.or_where(unchanged & (places >= 0) & (old.kinds == TEXT), old)


def from_earlier_images(cells: Cells, changes: Changes, previous: Ints) -> Cells:
    """`cells` (of the new tuples), those still unchanged replaced by the row's latest image that has the value."""
    unchanged = np.zeros(len(changes.tags), bool)
    unchanged[changes.new_messages] = cells.kinds == UNCHANGED
    source = chain_ends(np.where(unchanged, previous, -1))
    return cells.take(changes.new_places[source[changes.new_messages]])


def chain_ends(previous: Ints) -> Ints:
    """For each place, the last one reached by following `previous` until it is -1.

    Each round doubles the steps taken, so a row that changed 100,000 times needs 17 rounds.
    """
    places = np.arange(len(previous))
    end = np.where(previous >= 0, previous, places)
    while True:
        further = end[end]
        if (further == end).all():
            return end
        end = further
