"""Size classes of files: which count as of one size when they are merged."""

from __future__ import annotations

_CLASS_BITS = 3


def size_class(records: int) -> int:
    """Size class of a file, by rows instead of bytes: files with few rows consist mostly of footer, and eight of them
    make one that is hardly larger. Each class ends at eight times the rows of the one below."""
    return max(records.bit_length() - 1, 0) // _CLASS_BITS
