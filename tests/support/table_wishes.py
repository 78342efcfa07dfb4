"""Wishes for tests, of options as they are typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirror_pump.ops.register.table_wish import wish_of
from mirror_pump.source.relations.column_choices import ColumnChoices


def parse_choices(
    columns: Sequence[str],
    excluded: Sequence[str],
    masks: Sequence[str] = (),
    where: str = "",
    listed: str = "",
    **options: Any,
) -> ColumnChoices:
    """The choices of `--column`, `--exclude-column`, `--mask`, `--where` and `--columns-only`, and of `options`. Raises
    UsageError."""
    typed = {
        "column": list(columns),
        "exclude_column": list(excluded),
        "mask": list(masks),
        "where": where,
        "columns_only": listed,
    }
    return wish_of(typed | options).choices
