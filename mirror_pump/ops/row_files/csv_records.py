"""Where records of CSV end: a line break within quotes does not end one.

Quotes come in pairs, so a line break is outside of them if an even number of quotes precedes it in the file.
"""

from __future__ import annotations


def end_of_records(data: bytes | bytearray) -> int:
    """The index behind the last line break that is outside of quotes; 0 if there is none. The data begin outside of
    quotes."""
    end, quotes = len(data), data.count(b'"')
    while (newline := data.rfind(b"\n", 0, end)) >= 0:
        quotes -= data.count(b'"', newline, end)
        if quotes % 2 == 0:
            return newline + 1
        # Within a quoted field, which begins at the last quote before it.
        end = data.rfind(b'"', 0, newline)
        quotes -= 1
    return 0
