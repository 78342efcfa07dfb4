"""decode_segment in single cases: what it refuses, what it ignores, and the limits of its buffers."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from decoders import segment as segment_module
from decoders import tuples
from decoders.columns import ColumnType, Kind
from decoders.segment import RelationShape, TableChanges, decode_segment
from tests.support.pgoutput_encoder import BEGIN, COMMIT, UNCHANGED, delete, insert, segment, update

LONG, STRING = ColumnType(Kind.LONG), ColumnType(Kind.STRING)
BIG = "a text that is longer than a view's twelve bytes"


def shape(relation: int = 1, *types: str, key: tuple[int, ...] = (0,), copying: bool = False) -> RelationShape:
    kinds = types or ("long", "string", "string")
    return RelationShape(
        relation_id=relation,
        names=("id", "note", "doc", "more")[: len(kinds)],
        types=tuple(map(ColumnType.parse, kinds)),
        key=key,
        not_null=tuple(place in key for place in range(len(kinds))),
        every_key_deletes=copying,
    )


def decode(messages: list[bytes], *shapes: RelationShape) -> list[TableChanges]:
    return decode_segment(*segment(messages), {relation.relation_id: relation for relation in shapes or (shape(),)})


def decode_table(messages: list[bytes], *shapes: RelationShape) -> TableChanges:
    (result,) = decode(messages, *shapes)
    assert result.error is None
    return result


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def test_nothing_and_only_other_messages() -> None:
    assert decode([]) == []
    assert decode([BEGIN, COMMIT, b"M\0\0", b"R" + b"\0" * 9, insert(2, ["1", "a", "b"])]) == []


def test_last_image_wins_and_only_keys_from_before_delete() -> None:
    result = decode_table([
        BEGIN,
        insert(1, ["5", "a", None]),
        update(1, ["5", "b", ""]),
        update(1, ["7", "c", BIG]),
        delete(1, ["8", None, None]),
        insert(1, ["9", "x", "y"]),
        delete(1, ["9", None, None]),
        COMMIT,
    ])  # fmt: skip
    assert result.changes == 6
    assert rows(result.rows) == [(5, "b", ""), (7, "c", BIG)]
    assert rows(result.deleted_keys) == [(7,), (8,)]
    assert result.incomplete is None
    assert result.rows.schema == pa.schema([("id", pa.int64()), ("note", pa.string()), ("doc", pa.string())])


def test_a_table_that_is_copied_deletes_every_key() -> None:
    result = decode_table([insert(1, ["5", "a", "b"]), insert(1, ["6", "a", "b"])], shape(copying=True))
    assert rows(result.deleted_keys) == [(5,), (6,)]


def test_delete_and_reinsert_keeps_the_delete() -> None:
    result = decode_table([delete(1, ["5", None, None]), insert(1, ["5", "a", "b"])])
    assert rows(result.rows) == [(5, "a", "b")]
    assert rows(result.deleted_keys) == [(5,)]


def test_a_changed_key_goes_and_comes() -> None:
    result = decode_table(
        [update(1, ["6", "a", "b"], ["5", None, None]), update(1, ["7", "a", "b"], ["6", None, None])]
    )
    assert rows(result.rows) == [(7, "a", "b")]
    assert rows(result.deleted_keys) == [(5,)]


def test_an_old_key_that_did_not_change_is_no_key_change() -> None:
    result = decode_table([update(1, ["5", "a", "b"], ["5", None, None])])
    assert rows(result.rows) == [(5, "a", "b")]
    assert rows(result.deleted_keys) == [(5,)]


def test_unchanged_value_from_the_full_old_row() -> None:
    result = decode_table([update(1, ["5", "new", UNCHANGED], ["5", "old", BIG], full=True)])
    assert rows(result.rows) == [(5, "new", BIG)]


def test_unchanged_value_is_not_taken_from_an_old_key() -> None:
    result = decode_table([update(1, ["6", "new", UNCHANGED], ["5", None, None])])
    assert result.incomplete is not None
    assert rows(result.rows) == []
    assert rows(result.incomplete.rows) == [(6, "new", None)]
    assert rows(result.incomplete.missing) == [(False, False, True)]
    assert rows(result.incomplete.lookup_keys) == [(5,)]


def test_unchanged_value_of_the_key_itself() -> None:
    text_key = shape(1, "string", "string")
    result = decode_table([update(1, [UNCHANGED, "new"], [BIG, None]), delete(1, [BIG + "!", None])], text_key)
    assert rows(result.rows) == [(BIG, "new")]
    assert rows(result.deleted_keys) == [(BIG,), (BIG + "!",)]


def test_unchanged_value_through_a_key_change_while_its_old_key_is_reused() -> None:
    result = decode_table([
        update(1, ["5", "a", BIG]),
        update(1, ["6", "b", UNCHANGED], ["5", None, None]),
        insert(1, ["5", "c", "other"]),
        update(1, ["5", "d", UNCHANGED]),
        update(1, ["8", "e", UNCHANGED]),
        update(1, ["9", UNCHANGED, UNCHANGED], ["8", None, None]),
    ])  # fmt: skip
    assert rows(result.rows) == [(6, "b", BIG), (5, "d", "other")]
    assert result.incomplete is not None
    assert rows(result.incomplete.rows) == [(9, "e", None)]
    assert rows(result.incomplete.lookup_keys) == [(8,)]
    assert rows(result.deleted_keys) == [(5,), (8,)]


def test_a_hot_row_updated_many_times() -> None:
    count = 3000
    result = decode_table([update(1, ["5", str(turn), UNCHANGED if turn else BIG]) for turn in range(count)])
    assert rows(result.rows) == [(5, str(count - 1), BIG)]


def test_integer_keys_too_far_apart_to_pack() -> None:
    low, high = str(-(2**63)), str(2**63 - 1)
    result = decode_table([insert(1, [high, "a", None]), update(1, [low, "b", None]), update(1, [low, "c", None])])
    assert rows(result.rows) == [(2**63 - 1, "a", None), (-(2**63), "c", None)]
    assert rows(result.deleted_keys) == [(-(2**63),)]


def test_wide_composite_integer_keys() -> None:
    low, high = str(-(2**63)), str(2**63 - 1)
    keys = [(a, b) for a in (low, "0", high) for b in (low, "0", high)]
    result = decode_table(
        [insert(1, [a, b, "x"]) for a, b in keys] + [update(1, [a, b, "y"]) for a, b in keys],
        shape(1, "long", "long", "string", key=(0, 1)),
    )
    assert rows(result.rows) == [(int(a), int(b), "y") for a, b in keys]
    assert rows(result.deleted_keys) == []


def test_composite_text_keys_that_join_to_the_same_text() -> None:
    keys = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""), ("a\x1f", "b"), ("a", "\x1fb")]
    result = decode_table([insert(1, [a, b, "x"]) for a, b in keys], shape(1, "string", "string", "string", key=(0, 1)))
    assert rows(result.rows) == [(a, b, "x") for a, b in keys]


def test_key_columns_need_not_come_first() -> None:
    result = decode_table([delete(1, [None, "k", None])], shape(1, "long", "string", "string", key=(1,)))
    assert result.deleted_keys.schema == pa.schema([("note", pa.string())])
    assert rows(result.deleted_keys) == [("k",)]


def test_typed_keys_in_deletes() -> None:
    result = decode_table([delete(1, ["12.50", None])], shape(1, "decimal(6,2)", "string"))
    assert rows(result.deleted_keys) == [(Decimal("12.50"),)]


def test_good_and_bad_relations_are_described_separately() -> None:
    bad, good, other = decode(
        [
            insert(3, ["1", "a", "b"]),
            insert(1, ["one", "a", "b"]),
            insert(4_000_000_000, ["1", "c"]),
            insert(3, ["2", "a", "b"]),
            insert(2, ["1"]),
        ],
        shape(1),
        shape(3),
        shape(4_000_000_000, "long", "string"),
    )
    assert bad.error is not None
    assert "one" in bad.error
    assert (bad.relation_id, bad.changes, bad.rows.num_rows, bad.deleted_keys.num_rows) == (1, 1, 0, 0)
    assert rows(good.rows) == [(1, "a", "b"), (2, "a", "b")]
    assert rows(other.rows) == [(1, "c")]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (insert(1, ["1", "a"]), "2 columns, but the table is known to have 3"),
        (insert(1, [None, "a", "b"]), "column id"),
        (insert(1, ["1", b"\xff", "b"]), "column note"),
        (insert(1, ["1", UNCHANGED, "b"]), "INSERT"),
        (insert(1, ["1", "a", "b"]) + b"x", "longer or shorter"),
        (insert(1, ["1", "a", "b"])[:-1], "longer or shorter"),
        (insert(1, ["1", "a", "b"])[:12], ""),
        (b"I\0\0\0\1", ""),
        (update(1, ["1", "a", "b"], ["2", None, None])[:25], ""),
        (delete(1, ["1", "a", "b"]).replace(b"K", b"N"), "tuples"),
        (insert(1, ["1", "a", "b"]).replace(b"N", b"K"), "tuples"),
        (insert(1, ["1", "a", "b"]).replace(b"N", b"Z"), "tuples"),
        (insert(1, ["1", None, "b"]).replace(b"n", b"b"), "format b'b'"),
        (insert(1, ["1", "a", "b"]).replace(b"\0\0\1a", b"\xff\xff\xffa"), ""),
        (update(1, [UNCHANGED, "a", "b"]), "column id"),
        (delete(1, [None, None, None]), "column id"),
    ],
)  # fmt: skip
def test_malformed_messages_are_errors_of_their_relation(message: bytes, text: str) -> None:
    (result,) = decode([message])
    assert result.error is not None
    assert text in result.error
    assert result.rows.num_rows == result.deleted_keys.num_rows == 0
    assert result.rows.column_names == ["id", "note", "doc"]


def test_values_that_cannot_be_held_come_as_raw_text() -> None:
    changes = [insert(1, ["1", "NaN"]), insert(1, ["2", "1.00"]), insert(1, ["3", None]), update(1, ["4", UNCHANGED])]
    (result,) = decode(changes, shape(1, "long", "decimal(6,2)"))
    assert result.error is None
    assert rows(result.rows) == [(1, None), (2, Decimal("1.00")), (3, None)]
    assert {name: texts.to_pylist() for name, texts in result.raw.items()} == {"note": ["NaN", None, None]}
    assert result.incomplete is not None
    assert result.incomplete.raw == {}


def test_a_key_that_cannot_be_held_is_an_error_with_a_remedy() -> None:
    day = RelationShape(1, ("day",), (ColumnType(Kind.DATE),), (0,), (True,), every_key_deletes=False)
    (result,) = decode([insert(1, ["infinity"])], day)
    assert result.error is not None
    assert "key column day holds 'infinity'" in result.error
    assert "--column day=string" in result.error


def test_a_value_that_did_not_survive_is_not_even_parsed() -> None:
    result = decode_table([insert(1, ["1", "NaN"]), update(1, ["1", "1.00"])], shape(1, "long", "decimal(6,2)"))
    assert rows(result.rows) == [(1, Decimal("1.00"))]


def test_null_where_the_lake_requires_a_value() -> None:
    strict = RelationShape(1, ("id", "note"), (LONG, STRING), (0,), (True, True), every_key_deletes=False)
    (result,) = decode([insert(1, ["1", None])], strict)
    assert result.error is not None
    assert result.error.startswith("key column note holds NULL")
    assert decode_table([update(1, ["1", UNCHANGED])], strict).incomplete is not None


def test_lengths_that_do_not_fit_the_data() -> None:
    data, lengths = segment([insert(1, ["1", "a", "b"])])
    for wrong in (lengths + 1, lengths - 1, np.zeros(0, np.int32), np.array([len(data), 0], np.int32)):
        with pytest.raises(ValueError, match="lengths"):
            decode_segment(data, wrong, {1: shape()})


def test_messages_without_header() -> None:
    (result,) = decode_segment(*segment([insert(1, ["1", "a", None])], header=b""), {1: shape()}, header=0)
    assert rows(result.rows) == [(1, "a", None)]


def test_results_and_shapes_travel_between_processes() -> None:
    result = decode_table([update(1, ["6", "new", UNCHANGED])])
    assert pickle.loads(pickle.dumps(result)) == result
    assert pickle.loads(pickle.dumps(shape())) == shape()


def test_text_beyond_the_first_view_buffer_and_the_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    # The real limits are 1 GiB and 512 MiB: the same code with small ones.
    real = tuples.RawBuffer
    monkeypatch.setattr(segment_module, "RawBuffer", lambda data: real(data, block_bits=8, string_bytes=100))
    expected = [(key, f"{key}:" + "x" * (key % 40), None if key % 3 else "ä" * key) for key in range(60)]
    result = decode_table([insert(1, [str(key), note, doc]) for key, note, doc in expected])
    assert result.rows["note"].num_chunks > 3
    assert rows(result.rows) == expected
