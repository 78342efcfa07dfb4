"""What a relation's changes amount to: each key's first and last event, and the image that each change found.

An event is the appearance or disappearance of a row under a key. A message is one event, or two when an UPDATE changes
the key: the old key's row goes, then the new key's row is put.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoders.tuples import DELETE, INSERT, UPDATE, Bools, Changes, Ints


@dataclass(frozen=True)
class NetEffect:
    """Events sorted by key number, then by time."""

    keys: Ints
    messages: Ints
    puts: Bools
    """True: the message's new row is put under the key. False: the key's row goes."""
    first: Bools
    """The key's first event of the segment."""
    last: Bools
    """The key's last event of the segment."""
    key_changed: Bools
    """By message: an UPDATE whose new key differs from the old one."""
    changes: Changes

    @property
    def surviving(self) -> Ints:
        """Messages, in stream order, whose new row is there when the segment ends: one per key."""
        return np.sort(self.messages[self.last & self.puts])

    def deleting(self, *, every_key: bool) -> Ints:
        """Places of the first events of the keys whose row from before the segment must go.

        None is there from before if the key's first event is the row's appearance: the stream is applied exactly once.
        """
        if every_key:
            return np.flatnonzero(self.first)
        appears = self.puts & ((self.changes.tags[self.messages] == INSERT) | self.key_changed[self.messages])
        return np.flatnonzero(self.first & ~appears)

    def previous_images(self) -> Ints:
        """By message, the message that put the image its row had before; -1 if that is not in the segment."""
        before = np.full(len(self.messages), -1, np.int64)
        if len(before) > 1:
            follows = ~self.first[1:] & self.puts[:-1]
            before[1:] = np.where(follows, self.messages[:-1], -1)
        previous = np.full(len(self.changes.tags), -1, np.int64)
        tags = self.changes.tags[self.messages]
        # A row that changes its key had its earlier image under the old one: where that key's row goes.
        image = (tags == UPDATE) & (self.puts != self.key_changed[self.messages])
        previous[self.messages[image]] = before[image]
        return previous


def net_effect(changes: Changes, new_keys: Ints, old_keys: Ints) -> NetEffect:
    """Sort the events of `changes`, whose tuples have the key numbers `new_keys` and `old_keys`."""
    updates = changes.tags[changes.old_messages] == UPDATE
    changed = updates.copy()
    changed[updates] = old_keys[updates] != new_keys[changes.new_places[changes.old_messages[updates]]]
    key_changed = np.zeros(len(changes.tags), bool)
    key_changed[changes.old_messages] = changed
    goes = changed | (changes.tags[changes.old_messages] == DELETE)
    keys = np.concatenate([new_keys, old_keys[goes]])
    # Order within the stream: a key that goes precedes the row that the same message puts.
    order = np.concatenate([2 * changes.new_messages + 1, 2 * changes.old_messages[goes]])
    keys, order = _sorted(keys, order, 2 * len(changes.tags))
    boundary = keys[1:] != keys[:-1]
    edge = np.ones(min(len(keys), 1), bool)
    return NetEffect(
        keys=keys,
        messages=order >> 1,
        puts=(order & 1).astype(bool),
        first=np.concatenate([edge, boundary]),
        last=np.concatenate([boundary, edge]),
        key_changed=key_changed,
        changes=changes,
    )


def _sorted(keys: Ints, order: Ints, order_limit: int) -> tuple[Ints, Ints]:
    """Both sorted by key, then order. Packed into one integer where that fits: sorting those is ten times as fast."""
    if not len(keys):
        return keys, order
    low, bits = int(keys.min()), order_limit.bit_length()
    if (int(keys.max()) - low).bit_length() + bits <= 63:
        packed = ((keys - low) << bits) | order
        packed.sort()
        return (packed >> bits) + low, packed & ((1 << bits) - 1)
    places = np.lexsort((order, keys))
    return keys[places], order[places]
