"""Texts of json for property tests: each form that PostgreSQL accepts, and what of it a variant can hold."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

from decoders.variant_encoding import MOST_DIGITS, MOST_LEVELS

_SPACE = st.sampled_from(["", "", "", " ", "\n", "\t", "\r", " \n\t "])
_DIGITS = st.one_of(
    st.sampled_from(["0", "1", "127", "128", "32767", "32768", "2147483647", "2147483648", "999999999", "1000000000"]),
    st.sampled_from(
        [str(2**63 - 1), str(2**63), "9" * 18, "9" * 19, "9" * 38, "9" * 39, "1" + "0" * 37, "1" + "0" * 38]
    ),
    st.integers(0, 10**45).map(str),
    st.integers(0, 10**6).map(str),
)
_FRACTION = st.one_of(
    st.just(""),
    st.just(""),
    st.sampled_from([".0", ".5", ".50", ".00", "." + "0" * 37 + "1", "." + "0" * 38 + "1", "." + "0" * 40]),
    st.integers(0, 10**12).map(lambda number: f".{number}"),
    st.integers(0, 10**9).map(lambda number: f".{number:020}"),
)
_EXPONENT = st.one_of(
    st.just(""),
    st.just(""),
    st.just(""),
    st.builds("{}{}".format, st.sampled_from(["e", "E", "e+", "e-", "E-", "e-0", "e+00"]), st.integers(0, 45)),
    st.sampled_from(["e400", "e-400", "e131072", "e1073741822", "e1000000000000", "e-20000"]),
)
NUMBERS = st.builds("{}{}{}{}".format, st.sampled_from(["", "-"]), _DIGITS, _FRACTION, _EXPONENT)

_CHARACTERS = st.one_of(
    st.sampled_from(
        ['"', "\\", "/", "\b", "\f", "\n", "\r", "\t", "\x01", "\x1f", "\x7f", "a", " ", ":", ",", "{", "]"]
    ),
    st.sampled_from(["é", "e\u0301", "ß", "☃", "\ud7ff", "\ue000", "\uffff", "😀", "\U0010ffff"]),
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
)
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNHELD_ESCAPES = ["\\u0000", "\\ud800", "\\uDFFF", "\\udc00\\ud800"]


@st.composite
def _strings(draw: st.DrawFn) -> str:
    """A string as json: characters as they are, with short escapes, or escaped by their codes."""
    parts = []
    for character in draw(
        st.one_of(st.lists(_CHARACTERS, max_size=8), st.lists(_CHARACTERS, min_size=60, max_size=66))
    ):
        forms = [json.dumps(character)[1:-1], json.dumps(character)[1:-1].upper().replace("\\U", "\\u")]
        if character in _SHORT_ESCAPES:
            forms = [_SHORT_ESCAPES[character]] if character != "/" else ["/", "\\/"]
        elif character >= " ":
            forms.append(character)
        parts.append(draw(st.sampled_from([form for form in forms if json.loads(f'"{form}"') == character])))
    if draw(st.integers(0, 50)) == 0:
        parts.append(draw(st.sampled_from(_UNHELD_ESCAPES)))
    if draw(st.integers(0, 20)) == 0:
        parts.append("\\\\u0000")
    return f'"{"".join(parts)}"'


STRINGS = _strings()
_SCALARS = st.one_of(st.sampled_from(["null", "true", "false"]), NUMBERS, NUMBERS, STRINGS, STRINGS)


@st.composite
def _containers(draw: st.DrawFn, children: st.SearchStrategy[str]) -> str:
    def spaced(text: str) -> str:
        return draw(_SPACE) + text + draw(_SPACE)

    if draw(st.booleans()):
        elements = draw(st.lists(children, max_size=6))
        if elements and draw(st.integers(0, 10)) == 0:
            elements *= draw(st.sampled_from([50, 260]))
        return f"[{','.join(map(spaced, elements)) or draw(_SPACE)}]"
    names = draw(st.lists(STRINGS, max_size=6, unique_by=json.loads))
    if names and draw(st.integers(0, 30)) == 0:
        names.append(names[0])
    fields = [f"{spaced(name)}:{spaced(draw(children))}" for name in names]
    if draw(st.integers(0, 20)) == 0:
        fields += [f'"n{number}":{number}' for number in range(draw(st.sampled_from([255, 256, 300])))]
    return f"{{{','.join(fields) or draw(_SPACE)}}}"


DOCUMENTS = st.recursive(_SCALARS, _containers, max_leaves=20)
"""Texts of json, some of which jsonb refuses."""


def can_be_held(text: str, jsonb: str | None) -> bool:
    """Whether a variant holds a text of json. `jsonb`: what PostgreSQL prints for the jsonb of it; None if it refuses
    it."""
    if jsonb is None:
        return False
    outside_strings = re.sub(r'"(?:[^"\\]|\\.)*"', '""', jsonb)
    level = most_levels = 0
    for character in outside_strings:
        level += (character in "[{") - (character in "]}")
        most_levels = max(most_levels, level)
    for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", outside_strings):
        whole, _, fraction = number.partition(".")
        if max(len((whole + fraction).lstrip("0")), len(fraction)) > MOST_DIGITS:
            return False
    return most_levels <= MOST_LEVELS and not _has_name_twice(text)


def _has_name_twice(text: str) -> bool:
    counts = [0]

    def fields(pairs: list[tuple[str, Any]]) -> None:
        counts.append(len(pairs) - len({name for name, _ in pairs}))

    json.loads(text, object_pairs_hook=fields)
    return any(counts)
