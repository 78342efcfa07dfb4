"""What a pattern matches, and what is none."""

from __future__ import annotations

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.model import TableName
from mirror_pump.source.relations.table_patterns import EVERY_TABLE, is_pattern, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "table", "matches"),
    [
        ("sales.*", ("sales", "orders"), True),
        ("sales.*", ("sales", "Bestellungen ä.b"), True),
        ("sales.*", ("sales2", "orders"), False),
        ("sales.*", ("xsales", "orders"), False),
        ("SALES.Order?", ("sales", "orders"), True),
        ("sales.order?", ("sales", "order"), False),
        ("sales.order?", ("sales", "order\n"), True),
        ('"Sales".*', ("Sales", "x"), True),
        ('"Sales".*', ("sales", "x"), False),
        ('sales."a.b"*', ("sales", "a.bc"), True),
        ('sales."*"', ("sales", "*"), True),
        ('sales."*"', ("sales", "x"), False),
        ('sales."a""b"*', ("sales", 'a"b'), True),
        ("sales.t_*", ("sales", "t_1"), True),
        ("sales.t.*", ("sales", "t.1"), None),
        ("s.a+b*", ("s", "a+b1"), True),
        ("s.a+b*", ("s", "aab1"), False),
        ("s.[ab]*", ("s", "a"), False),
        ("orders*", ("anywhere", "orders_2"), True),
        ("Ä*.x", ("Ä1", "x"), True),
        (EVERY_TABLE, ("any", "table"), True),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, table: tuple[str, str], matches: bool | None) -> None:
    if matches is None:
        with pytest.raises(UsageError, match="is not a pattern"):
            parse_pattern(pattern)
        return
    assert parse_pattern(pattern).matches(TableName(*table)) is matches


@pytest.mark.parametrize("text", ["", ".", "*.", ".*", "a.b.*", 'sales."*', '"*', '"".*'])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a pattern"):
        parse_pattern(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("orders", False),
        ("sales.orders", False),
        ('"a*b"', False),
        ('s."what?"', False),
        ("s.*", True),
        ('"a*"?', True),
    ],
)
def test_a_name_is_no_pattern(text: str, result: bool) -> None:
    assert is_pattern(text) is result
