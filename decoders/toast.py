"""Fills in cells that pgoutput left out because a large (TOASTed) value did not change.

The value is in the old tuple if the server sent one that has it, or in an earlier image of the same row in the segment.
Otherwise it is outside the segment, under the key that the row had at the beginning of the segment.
"""

from __future__ import annotations

import numpy as np

from decoders.tuples import TEXT, UNCHANGED, Cells, Changes, Ints


def from_old_tuples(changes: Changes, column: int) -> Cells:
    """The new tuples' cells of `column`, with unchanged cells taken from the message's old tuple if that has the value.

    An old tuple that only holds the key has NULL for all other columns, which means nothing, so only text is taken.
    """
    cells = changes.new[column]
    unchanged = cells.kinds == UNCHANGED
    if not unchanged.any() or not len(changes.old_messages):
        return cells
    places = changes.old_places[changes.new_messages]
    old = changes.old[column].take(places)
    return cells.or_where(unchanged & (places >= 0) & (old.kinds == TEXT), old)


def from_earlier_images(cells: Cells, changes: Changes, previous: Ints) -> Cells:
    """`cells` of the new tuples. Cells still unchanged are taken from the row's latest image that has the value."""
    unchanged = np.zeros(len(changes.tags), bool)
    unchanged[changes.new_messages] = cells.kinds == UNCHANGED
    source = chain_ends(np.where(unchanged, previous, -1))
    return cells.take(changes.new_places[source[changes.new_messages]])


def chain_ends(previous: Ints) -> Ints:
    """For each index, the last index reached by following `previous` until it is -1.

    Each round doubles the steps taken, so a row that changed 100,000 times needs 17 rounds.
    """
    places = np.arange(len(previous))
    end = np.where(previous >= 0, previous, places)
    while True:
        further = end[end]
        if (further == end).all():
            return end
        end = further
