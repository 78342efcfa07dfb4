"""Which names a synchronous_standby_names has."""

from __future__ import annotations

import pytest

from mirror_pump.source.stream.synchronous import standby_names


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("", set()),
        ("*", {"*"}),
        ("s1, S2", {"s1", "s2"}),
        ("FIRST 1 (*)", {"*"}),
        ("any 2 (s1,\n s2,*)", {"s1", "s2", "*"}),
        ("2 (s1, s2)", {"s1", "s2"}),
        ('"Mirror-Pump-Stream"', {"mirror-pump-stream"}),
        ('FIRST 1 ("a ""b"" (c", d)', {'a "b" (c', "d"}),
        ("first, any", {"first", "any"}),
    ],
)
def test_names_are_told_from_words_and_numbers(setting: str, names: set[str]) -> None:
    assert standby_names(setting) == names
