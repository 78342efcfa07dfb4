"""Maps Postgres types to lake types (docs/types.md): a pure function of catalog facts."""

from __future__ import annotations

from decoders.columns import ColumnType, Kind

_STRING = ColumnType(Kind.STRING)
NUMERIC = 1700
"""pg_type.oid of numeric."""
JSONB = 3802
"""pg_type.oid of jsonb."""
DOCUMENTS = frozenset({114, JSONB})
"""pg_type.oid of json and jsonb, which are text in the lake unless a user chooses variants."""

_MAX_PRECISION = 38
"""Maximum digits of an Iceberg decimal and of Arrow's decimal128."""

_VARHDRSZ = 4
"""Postgres adds this to a type modifier, so that 0 is never a valid one."""

_SCALARS: dict[int, Kind] = {
    16: Kind.BOOLEAN,
    17: Kind.BINARY,
    20: Kind.LONG,
    21: Kind.INT,
    23: Kind.INT,
    26: Kind.LONG,  # oid is unsigned, so it does not fit into a 32-bit int.
    700: Kind.FLOAT,
    701: Kind.DOUBLE,
    1082: Kind.DATE,
    1114: Kind.TIMESTAMP,
    1184: Kind.TIMESTAMPTZ,
    2950: Kind.UUID,
}
"""By pg_type.oid: bool, bytea, int8, int2, int4, oid, float4, float8, date, timestamp, timestamptz, uuid.

`time` (1083) becomes a string, as printed by Postgres. Iceberg has the type, but Spark refuses to load any table with
such a column ("Spark does not support time fields", Iceberg 1.12), and 24:00:00 does not fit it.
"""

_ARRAYS: dict[int, int] = {
    1000: 16,
    1001: 17,
    1002: 18,
    1003: 19,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1028: 26,
    1041: 869,
    1040: 829,
    1115: 1114,
    1182: 1082,
    1183: 1083,
    1185: 1184,
    1187: 1186,
    1231: 1700,
    199: 114,
    651: 650,
    2951: 2950,
    3807: 3802,
    143: 142,
    1270: 1266,
    791: 790,
    1561: 1560,
    1563: 1562,
    3905: 3904,
    3907: 3906,
    3909: 3908,
    3911: 3910,
    3913: 3912,
    3927: 3926,
    3643: 3614,
}
"""Element type by pg_type.typarray, for built-in types (pg_type.dat). Deliberately absent: box[] (1020), whose text
separates elements by semicolons; int2vector and oidvector, whose text is not that of an array."""

_EXTENSION_TYPES: dict[str, ColumnType] = {
    "vector.vector": ColumnType(Kind.LIST, element=ColumnType(Kind.FLOAT)),
    "vector.halfvec": ColumnType(Kind.LIST, element=ColumnType(Kind.FLOAT)),
}
"""Extension types that are not stored as text, as `extension.type`, since their OIDs differ between databases.
pgvector's types print `[1,2,3]`. Every half-precision number is also a single-precision number. Arrays of them are
lists of text."""

_NEVER_LISTS = frozenset({22, 30, 1020})
"""int2vector, oidvector and box[] have pg_type.typelem, but their text is not that of an array with commas."""


def element_of(type_oid: int) -> int | None:
    """The type of the elements of a built-in array type whose text has commas; None for all other types."""
    return _ARRAYS.get(type_oid)


def column_type(
    type_oid: int,
    type_modifier: int = -1,
    *,
    typtype: str = "b",
    base_oid: int = 0,
    base_modifier: int = -1,
    element_oid: int = 0,
    delimiter: str = ",",
    extension_type: str = "",
) -> ColumnType:
    """The lake type of a column of type `type_oid` with `type_modifier` (pg_attribute.atttypmod).

    For a domain (`typtype` 'd'), pass `base_oid` and `base_modifier` of the innermost type that is not a domain. For an
    array type that is not built in, pass `element_oid` (pg_type.typelem if typcategory is 'A'; the base type's if the
    element is a domain) and the element's `delimiter` (pg_type.typdelim). For an extension's type, pass
    `extension_type`: the extension's name, a dot, the type's name. Any type that is not in the table of docs/types.md
    becomes a string, as printed by Postgres. Never fails.
    """
    if typtype == "d" and base_oid:
        return column_type(
            base_oid, base_modifier, element_oid=element_oid, delimiter=delimiter, extension_type=extension_type
        )
    if extension_type in _EXTENSION_TYPES:
        return _EXTENSION_TYPES[extension_type]
    if type_oid == NUMERIC:
        return _numeric(type_modifier)
    if type_oid in _SCALARS:
        return ColumnType(_SCALARS[type_oid])
    if type_oid in _NEVER_LISTS or delimiter != ",":
        return _STRING
    # pg_type.typelem is also set for types that are not arrays (point, name), so callers check the category first.
    element = _ARRAYS.get(type_oid, element_oid)
    if not element or element in _ARRAYS or element in _NEVER_LISTS:
        return _STRING
    return ColumnType(Kind.LIST, element=column_type(element, type_modifier))


def _numeric(type_modifier: int) -> ColumnType:
    """numeric(p,s) as a decimal; a string if it needs more than 38 digits or declares none.

    Modifier: precision in the upper half, scale in the lower 11 bits, signed since PostgreSQL 15 (numeric.c,
    make_numeric_typmod). A negative scale means zeros before the decimal point, a scale above the precision means zeros
    after it.
    """
    if type_modifier < _VARHDRSZ:
        return _STRING
    packed = type_modifier - _VARHDRSZ
    precision = (packed >> 16) & 0xFFFF
    scale = ((packed & 0x7FF) ^ 0x400) - 0x400
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return ColumnType(Kind.DECIMAL, precision, scale) if precision <= _MAX_PRECISION else _STRING
