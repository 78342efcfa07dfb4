"""The mapping of types, by type OID."""

from __future__ import annotations

import pytest

from decoders.pgtypes import column_type


def numeric(precision: int, scale: int) -> int:
    """The type modifier of numeric(precision, scale)."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("oid", "expected"),
    [
        (16, "boolean"),
        (17, "binary"),
        (18, "string"),
        (19, "string"),
        (20, "long"),
        (21, "int"),
        (23, "int"),
        (25, "string"),
        (26, "long"),
        (114, "string"),
        (600, "string"),
        (700, "float"),
        (701, "double"),
        (790, "string"),
        (869, "string"),
        (1042, "string"),
        (1043, "string"),
        (1082, "date"),
        (1083, "string"),
        (1114, "timestamp"),
        (1184, "timestamptz"),
        (1186, "string"),
        (1266, "string"),
        (1700, "string"),
        (2950, "uuid"),
        (3802, "string"),
        (1007, "list<int>"),
        (1009, "list<string>"),
        (1016, "list<long>"),
        (1185, "list<timestamptz>"),
        (1231, "list<string>"),
        (2951, "list<uuid>"),
        (1020, "string"),
        (22, "string"),
        (30, "string"),
        (99_999, "string"),
    ],
)
def test_built_in_types(oid: int, expected: str) -> None:
    assert str(column_type(oid)) == expected


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (14, 2, "decimal(14,2)"),
        (38, 38, "decimal(38,38)"),
        (1, 0, "decimal(1,0)"),
        (39, 0, "string"),
        (1000, 500, "string"),
        (3, -2, "decimal(5,0)"),
        (30, -9, "string"),
        (2, 5, "decimal(5,5)"),
        (2, 39, "string"),
    ],
)
def test_numeric(precision: int, scale: int, expected: str) -> None:
    assert str(column_type(1700, numeric(precision, scale))) == expected


def test_arrays_of_numeric_keep_the_modifier() -> None:
    assert str(column_type(1231, numeric(10, 3))) == "list<decimal(10,3)>"


def test_domains_are_their_base_type() -> None:
    assert str(column_type(70_000, typtype="d", base_oid=1700, base_modifier=numeric(9, 1))) == "decimal(9,1)"
    assert str(column_type(70_000, typtype="d", base_oid=1007)) == "list<int>"


def test_arrays_of_user_types() -> None:
    assert str(column_type(70_001, element_oid=70_000)) == "list<string>"
    assert str(column_type(70_001, element_oid=70_000, delimiter=";")) == "string"
    assert str(column_type(70_001, element_oid=1007)) == "string"
