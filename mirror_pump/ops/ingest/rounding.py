"""Which texts PostgreSQL would round, or cut, when it reads them into a column: it does so without a word."""

from __future__ import annotations

import re

from decoders.pgtypes import element_of
from mirror_pump.ops.ingest.target_columns import TargetColumn

_DATE = 1082
_TIMES = frozenset({1083, 1114, 1184, 1186, 1266})
"""time, timestamp, timestamptz, interval, timetz by pg_type.oid."""
_MODIFIED = _TIMES | {1700, 1043}
"""Also numeric and varchar: with a modifier they keep less than without. Not char(n), in which blanks at the end mean
nothing, nor bit(n), which refuses what does not fit."""

_MODIFIER = re.compile(r" ?\([0-9]+(?:,-?[0-9]+)?\)")
"""The modifier in a name of pg_catalog.format_type, such as `numeric(12,2)[]` or `interval day to second(3)`."""


def is_rounded(text: str, column: TargetColumn) -> str | None:
    """An SQL condition: the column's value is not all of what the SQL expression `text` says. None if it always is.

    `text` is of type text, and PostgreSQL accepts it as a value of the column. That a float takes the nearest number
    that it has is no rounding in this sense.
    """
    conditions = []
    element = element_of(column.type_oid)
    single = column.type_oid if element is None else element
    if single in _MODIFIED and column.type_modifier != -1:
        unbounded = _MODIFIER.sub("", column.type_sql)
        conditions.append(f"{text}::{unbounded} <> {text}::{column.type_sql}")
    if single in _TIMES:
        # Microseconds are what PostgreSQL has.
        conditions.append(f"{text} ~ '[0-9][.][0-9]{{6}}[0-9]*[1-9]'")
    if single == _DATE:
        many = "" if element is None else "[]"
        conditions.append(
            f"CASE WHEN {text} ~ ':' THEN {text}::timestamp{many} <> {text}::date{many}::timestamp{many} END"
        )
    return " OR ".join(conditions) or None
