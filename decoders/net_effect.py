"""Computes the net effect of a relation's changes: each key's first and last event, and each change's previous image.

An event is the appearance or disappearance of a row under a key. A message is one event, or two if an UPDATE changes
the key: the row of the old key goes, then the row of the new key is put.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoders.tuples import DELETE, INSERT, UPDATE, Bools, Changes, Ints


@dataclass(frozen=True)
class NetEffect:
    """Events, sorted by key number, then by time."""

    keys: Ints
    messages: Ints
    puts: Bools
    """True if the message's new row is put under the key, False if the key's row goes."""
    first: Bools
    """Whether this is the key's first event in the segment."""
    last: Bools
    """Whether this is the key's last event in the segment."""
    key_changed: Bools
    """By message: whether it is an UPDATE whose new key differs from the old one."""
    changes: Changes

    @property
    def surviving(self) -> Ints:
        """Messages, in stream order, whose new row exists at the end of the segment; one per key."""
        return np.sort(self.messages[self.last & self.puts])

    @property
    def appears(self) -> Bools:
        """Whether the event is the appearance of a row: there was none under its key."""
        fresh: Bools = (self.changes.tags[self.messages] == INSERT) | self.key_changed[self.messages]
        return self.puts & fresh

    def deleting(self, *, every_key: bool) -> Ints:
        """Indexes of the first events of those keys whose row from before the segment must be deleted.

        If a key's first event is the appearance of its row, there was no row before: the stream is applied exactly
        once.
        """
        return np.flatnonzero(self.first if every_key else self.first & ~self.appears)

    def previous_images(self) -> Ints:
        """By message, the message with the previous image of its row; -1 if that is not in the segment."""
        before = np.full(len(self.messages), -1, np.int64)
        if len(before) > 1:
            follows = ~self.first[1:] & self.puts[:-1]
            before[1:] = np.where(follows, self.messages[:-1], -1)
        previous = np.full(len(self.changes.tags), -1, np.int64)
        tags = self.changes.tags[self.messages]
        # If an update changes the key, the previous image is under the old key, where the row goes.
        image = (tags == UPDATE) & (self.puts != self.key_changed[self.messages])
        previous[self.messages[image]] = before[image]
        return previous


def net_effect(changes: Changes, new_keys: Ints, old_keys: Ints) -> NetEffect:
    """Sorts the events of `changes`, whose tuples have the key numbers `new_keys` and `old_keys`."""
    updates = changes.tags[changes.old_messages] == UPDATE
    changed = updates.copy()
    changed[updates] = old_keys[updates] != new_keys[changes.new_places[changes.old_messages[updates]]]
    key_changed = np.zeros(len(changes.tags), bool)
    key_changed[changes.old_messages] = changed
    goes = changed | (changes.tags[changes.old_messages] == DELETE)
    keys = np.concatenate([new_keys, old_keys[goes]])
    # Order within the stream: if a message changes the key, the old row goes before the new row is put.
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
    """Both arrays sorted by key, then order. Packs them into one integer if they fit, which sorts ten times faster."""
    if not len(keys):
        return keys, order
    low, bits = int(keys.min()), order_limit.bit_length()
    if (int(keys.max()) - low).bit_length() + bits <= 63:
        packed = ((keys - low) << bits) | order
        packed.sort()
        return (packed >> bits) + low, packed & ((1 << bits) - 1)
    places = np.lexsort((order, keys))
    return keys[places], order[places]
