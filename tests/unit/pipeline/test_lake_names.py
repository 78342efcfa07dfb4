"""Which table gets a name that several claim (mirror_pump.pipeline.operations.lake_names)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.model import TableId, TableName
from mirror_pump.pipeline.operations.lake_names import TableNames, settled_feeds, settled_names

_NAMES = [TableName("public", name) for name in "abcde"]


def _name(text: str) -> TableName:
    return TableName("public", text)


def _settled(
    tables: Mapping[int, tuple[str, str | None]],
    new_names: Mapping[int, str],
    newcomer: str = "",
    reserved: str | None = None,
) -> dict[int, str]:
    """By table, its name. `tables`: their names in the catalog and in PostgreSQL."""
    named = [
        TableNames(TableId(number), _name(name), None if present is None else _name(present))
        for number, (name, present) in tables.items()
    ]
    names = settled_names(
        named,
        {TableId(number): _name(name) for number, name in new_names.items()},
        {TableId(99): _name(newcomer)} if newcomer else {},
        lambda name: name not in {table.name for table in named},
        () if reserved is None else {_name(reserved)},
    )
    return {int(table_id): name.name for table_id, name in names.items()}


def test_renames_of_the_stream_are_followed() -> None:
    assert _settled({1: ("a", "b"), 2: ("b", "a"), 3: ("c", "c")}, {1: "b", 2: "a"}) == {1: "b", 2: "a", 3: "c"}


def test_a_dropped_table_gives_its_name_up() -> None:
    assert _settled({1: ("a", None), 2: ("b", "a")}, {2: "a"}) == {1: "a__former", 2: "a"}
    assert _settled({1: ("a", None), 2: ("b", "a"), 3: ("a__former", None)}, {2: "a"})[1] == "a__former_2"


def test_a_renamed_table_gives_its_name_up_ahead_of_the_stream() -> None:
    assert _settled({1: ("a", "b"), 2: ("b", "c")}, {}, "a") == {1: "b", 2: "c"}


def test_a_dropped_table_stays_where_no_other_has_its_name() -> None:
    assert _settled({1: ("a", None), 2: ("b", "c")}, {2: "c"}) == {1: "a", 2: "c"}


def test_no_table_gets_the_name_of_a_feed_without_a_table() -> None:
    """It keeps the name that it is given instead, whenever names are settled."""
    assert _settled({1: ("a", "x"), 2: ("b", "b")}, {1: "x"}, reserved="x") == {1: "x__former", 2: "b"}
    assert _settled({1: ("x__former", "x"), 2: ("b", "b")}, {1: "x"}, reserved="x") == {1: "x__former", 2: "b"}
    assert _settled({1: ("a", "x"), 2: ("x__former", "b")}, {1: "x"}, reserved="x")[1] == "x__former_2"


@given(
    st.permutations(_NAMES),
    st.permutations(_NAMES),
    st.sets(st.integers(0, 4)),
    st.dictionaries(st.integers(0, 4), st.sampled_from(_NAMES)),
    st.booleans(),
)
def test_no_name_has_two_tables(
    former: list[TableName],
    present: list[TableName],
    dropped: set[int],
    new: dict[int, TableName],
    has_newcomer: bool,
) -> None:
    """And a table that is called in PostgreSQL as it claims to be keeps that name."""
    last = {TableId(99): present[4]} if has_newcomer else {}
    tables = [
        TableNames(TableId(n), former[n], None if n in dropped or (has_newcomer and n == 4) else present[n])
        for n in range(5)
    ]
    new_names = {TableId(n): name for n, name in new.items()}
    names = settled_names(tables, new_names, last, lambda name: name not in _NAMES)
    claims = {table.table_id: new_names.get(table.table_id, table.name) for table in tables}
    counts = Counter([*claims.values(), *last.values()])
    assert max(Counter([*names.values(), *last.values()]).values()) == 1
    for table in tables:
        claim = claims[table.table_id]
        if claim == table.present_name:
            assert names[table.table_id] == claim
        elif names[table.table_id] != claim:
            assert counts[claim] > 1 or claim in present
            assert names[table.table_id] == table.present_name or table.present_name is None


def test_feeds_are_called_after_their_tables_beside_what_is_there() -> None:
    tables = {TableId(1): _name("a"), TableId(2): _name("a__changes"), TableId(3): _name("c")}
    former = {table_id: _name("x") for table_id in tables}
    assert {number: name.name for number, name in settled_feeds(former, tables, {_name("c__changes")}).items()} == {
        1: "a__changes_2",
        2: "a__changes__changes",
        3: "c__changes_2",
    }
