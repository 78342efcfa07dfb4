"""How users name columns and what is chosen for them: `amount=decimal(38,9)`, `email=sha256`, `id,"x, y"`. No I/O, but
that the key of a mask is read."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence

from decoders.columns import ColumnType, Kind
from decoders.masks import Mask, MaskKeyUnusable
from mirror_pump.errors import UsageError


def parse_types(texts: Sequence[str]) -> dict[str, ColumnType]:
    """Lake types by column, from texts like `amount=decimal(38,9)`. Raises UsageError."""
    types: dict[str, ColumnType] = {}
    for text in texts:
        # A name may contain an equals sign; a type does not.
        name, equals, type_text = text.rpartition("=")
        if not equals or not name:
            raise UsageError(f"--column {text}: no lake type", "write it as --column 'amount=decimal(38,9)'")
        if name in types:
            raise UsageError(f"--column names {name} twice")
        types[name] = _parse_type(type_text)
    return types


def parse_masks(texts: Sequence[str]) -> dict[str, ColumnType]:
    """The types of masked columns, from texts like `email=sha256`. Raises UsageError, which does not repeat a mask: it
    may be a key, by mistake."""
    masks: dict[str, ColumnType] = {}
    for text in texts:
        name, equals, mask_text = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--mask {name}: no mask", "write it as --mask email=sha256")
        if name in masks:
            raise UsageError(f"--mask names {name} twice")
        try:
            mask = Mask.parse(mask_text).with_key_check()
        except MaskKeyUnusable as error:
            raise UsageError(f"--mask {name}: {error}", "docs/masks.md says who reads the key") from None
        except ValueError:
            raise UsageError(
                f"--mask {name}: not a mask",
                "choose sha256, hmac(env:NAME), hmac(file:/absolute/path), null, prefix(N) or constant(TEXT)",
            ) from None
        masks[name] = ColumnType(Kind.STRING, mask=mask)
    return masks


def texts_of_types(types: Mapping[str, ColumnType]) -> list[str]:
    """Lake types or masks, as they are typed."""
    return [f"{name}={column_type.mask or column_type}" for name, column_type in types.items()]


def parse_list(text: str) -> frozenset[str]:
    """Names with commas between; one with a comma, or a line end, is in double quotes. Raises UsageError."""
    try:
        names = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:
        raise UsageError("--columns-only: a line end is in no name without quotes", 'write it as id,"name"') from None
    return frozenset(name.strip() for name in names) - {""}


def list_text(names: Iterable[str]) -> str:
    """Names as `parse_list` reads them."""
    return ",".join(
        '"' + name.replace('"', '""') + '"' if any(sign in name for sign in ',"\r\n') or name != name.strip() else name
        for name in names
    )


def _parse_type(text: str) -> ColumnType:
    try:
        column_type = ColumnType.parse(text.replace(" ", "").lower())
        sound = _sound(column_type)
    except (ValueError, TypeError):
        sound = False
    if not sound:
        raise UsageError(
            f"{text!r} is not a lake type that can be chosen",
            "choose string, long, decimal(P,S) with P up to 38, or a list of these, such as list<decimal(38,9)>; for"
            " json and jsonb variant",
        )
    return column_type


def _sound(column_type: ColumnType) -> bool:
    if column_type.element is not None:
        element = column_type.element
        return element.element is None and not element.is_document and _sound(element)
    return column_type.kind is not Kind.DECIMAL or (
        0 <= column_type.scale <= column_type.precision and 1 <= column_type.precision <= 38
    )
