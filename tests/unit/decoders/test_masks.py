"""Masks: what they are, computed by other means; how they are written; and keys that are not there."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from decoders.masks import Mask, MaskKeyUnusable
from decoders.text import parse_column, parse_text

KEY = "a key of sixteen bytes or more"
TEXTS = ["ä@example.org", "", None, "b", "ä@example.org", "𝄞𝄞𝄞𝄞", "b"]


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text(KEY + "\r\n")
    return f"file:{path}"


def masked(mask: str) -> list[str | None]:
    texts = pa.array(["x", *TEXTS, "y"])[1:-1]
    parsed = parse_text(texts, ColumnType(Kind.STRING, mask=Mask.parse(mask).with_key_check()))
    assert parsed.unrepresentable is None
    assert parsed.values.type == pa.string()
    return list(parsed.values.to_pylist())


def test_each_mask_is_what_its_name_says(key: str) -> None:
    assert masked("sha256") == [None if t is None else hashlib.sha256(t.encode()).hexdigest() for t in TEXTS]
    assert masked(f"hmac({key})") == [
        None if t is None else hmac.new(KEY.encode(), t.encode(), "sha256").hexdigest() for t in TEXTS
    ]
    assert masked("null") == [None] * len(TEXTS)
    assert masked("prefix(2)") == [None if t is None else t[:2] for t in TEXTS]
    assert masked("constant(a (b))") == [None if t is None else "a (b)" for t in TEXTS]


def test_no_values_and_chunks(key: str) -> None:
    for mask in ("sha256", "null", "prefix(1)", "constant()", f"hmac({key})"):
        kind = ColumnType(Kind.STRING, mask=Mask.parse(mask).with_key_check())
        assert parse_text(pa.array([], pa.string()), kind).values.to_pylist() == []
        assert parse_text(pa.nulls(2, pa.string()), kind).values.to_pylist() == [None, None]
        assert parse_column(pa.chunked_array([["a"], ["a"]]), kind).values.num_chunks == 2


def test_types_with_masks_go_through_their_text_and_say_nothing_of_the_key(key: str) -> None:
    for mask in ("sha256", "null", "prefix(3)", "constant(x as y)", f"hmac({key})", "hmac(env:PATH)"):
        kind = ColumnType(Kind.STRING, mask=Mask.parse(mask).with_key_check())
        assert ColumnType.parse(str(kind)) == kind == pickle.loads(pickle.dumps(kind))
        assert KEY not in str(kind) + repr(kind)
        assert str(kind.unmasked) == "string"


@pytest.mark.parametrize(
    "text",
    """|md5|sha256()|sha256(x)|null(1)|prefix|prefix()|prefix(0)|prefix(-1)|prefix(x)|hmac|prefix(3|hmac(secret)|hmac(env:)
    |hmac(file:relative)|constant|constant(x|SHA256|prefix(²)""".replace("\n    ", "").split("|"),
)
def test_what_is_no_mask(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Mask.parse(text)


def test_keys_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MaskKeyUnusable, match="environment variable MIRROR_PUMP_NO_SUCH is not set"):
        Mask.parse("hmac(env:MIRROR_PUMP_NO_SUCH)").with_key_check()
    with pytest.raises(MaskKeyUnusable, match="cannot be read"):
        Mask.parse(f"hmac(file:{tmp_path}/none)").with_key_check()
    short = tmp_path / "short"
    short.write_text("fifteen bytes!!")
    with pytest.raises(MaskKeyUnusable, match="shorter") as refused:
        Mask.parse(f"hmac(file:{short})").with_key_check()
    assert "fifteen" not in str(refused.value)
    for no_key in ("/dev/zero", "/a\0b"):
        with pytest.raises(MaskKeyUnusable, match="cannot be read"):
            Mask.parse(f"hmac(file:{no_key})").with_key_check()
    monkeypatch.setenv("MIRROR_PUMP_MASK_A", KEY)
    monkeypatch.setenv("MIRROR_PUMP_MASK_B", KEY + "another")
    registered = str(ColumnType(Kind.STRING, mask=Mask.parse("hmac(env:MIRROR_PUMP_MASK_A)").with_key_check()))
    other = ColumnType.parse(registered.replace("MASK_A", "MASK_B"))
    with pytest.raises(MaskKeyUnusable, match="not the one that the table was registered with"):
        parse_text(pa.array(["a"]), other)
