"""The types that a column can have, with their edge values: what the type tests send through copy and stream."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.testing.installation import extensions, major_version


@dataclass(frozen=True)
class Case:
    """One column's type and some of its values, as SQL expressions."""

    type: str
    lake: str
    """The lake type, as `ColumnType` prints it."""
    values: tuple[str, ...]
    array: str | None = "list"
    """The lake type of the type's arrays: `list` of its own; None if there is no such array type."""
    unheld: tuple[str, ...] = ()
    """Values that only a raw text column can hold."""


_BROUGHT_BY = {
    "citext": "citext", "hstore": "hstore", "ltree": "ltree", "lquery": "ltree", "ltxtquery": "ltree", "cube": "cube",
    "isbn13": "isn", "seg": "seg", "query_int": "intarray", "vector": "vector", "vector(3)": "vector",
    "halfvec": "vector", "sparsevec": "vector",
}  # fmt: skip
"""Extensions by type: all in contrib except vector, which the embedded server contains too."""

EXTENSIONS = tuple(sorted({*_BROUGHT_BY.values()} & extensions()))
"""The extensions that the tests install. Servers other than the embedded one may lack some."""

_SINCE = {"numeric(5,-2)": 15, "numeric(3,5)": 15, "numeric(1,-37)": 15, "numeric(2,-37)": 15}
"""The major version in which a type was added, if not all supported versions have it."""

SETUP = (
    "CREATE DOMAIN amount AS numeric(10, 2) CHECK (value > -1000)",
    "CREATE DOMAIN price AS amount NOT NULL DEFAULT 1",
    "CREATE DOMAIN optional_price AS amount",
    "CREATE DOMAIN words AS text[]",
    "CREATE DOMAIN more_words AS words CHECK (cardinality(value) < 9)",
    "CREATE DOMAIN wide AS oid",
    "CREATE DOMAIN moment AS timestamptz(3)",
    "CREATE TYPE mood AS ENUM ('ok', 'not ok', 'qu''o\"te', 'ünï')",
    "CREATE DOMAIN calm AS mood CHECK (value <> 'not ok')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE TYPE nested AS (p pair, l text[], f float8, t timestamptz)",
    "CREATE DOMAIN good_pair AS pair CHECK ((value).a > 0)",
    "CREATE TYPE float8range_ AS RANGE (subtype = float8, subtype_diff = float8mi)",
    # A user's type that the mapping does not know: text in, text out.
    "CREATE TYPE stranger",
    # The embedded server is built without libxml: only such a cast creates a value of type xml.
    "CREATE CAST (bytea AS xml) WITHOUT FUNCTION",
    "CREATE FUNCTION stranger_in(cstring) RETURNS stranger LANGUAGE internal IMMUTABLE STRICT AS 'textin'",
    "CREATE FUNCTION stranger_out(stranger) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'",
    "CREATE TYPE stranger (INPUT = stranger_in, OUTPUT = stranger_out, LIKE = text)",
)

_INTS_2 = ("-32768", "32767", "0")
_ALL_BYTES = "decode(string_agg(lpad(to_hex(g), 2, '0'), '' ORDER BY g), 'hex')"
_TEXTS = (
    "''",
    "' '",
    "'NULL'",
    "'null'",
    r"E'\\N'",
    r"""E'it''s "quoted" \\ back\\\\slash'""",
    r"E'line\nfeed\r\ntab\t\x01\x1f\x7f'",
    "'{a,b}'",
    # White space in Unicode, but not for array_out, which only quotes because of ASCII's.
    r"E'\u00a0x\u2009y\u3000'",
    r"E'\u0085'",
    r"E'\x1c\x1d\x1e'",
    "'grüße 中文 \u0301 \u200f \ufeff \uffff \ufffd'",
    # One from each plane of Unicode, including the last noncharacter.
    "(SELECT string_agg(chr(g * 65536 + 65533), '') FROM generate_series(1, 16) g) || chr(1114111) || chr(55295)",
    "repeat('long ''quoted'' \\ ', 20000)",
)

BUILT_IN = (
    Case("boolean", "boolean", ("true", "false")),
    Case("int2", "int", _INTS_2),
    Case("int4", "int", ("-2147483648", "2147483647", "0")),
    Case("int8", "long", ("'-9223372036854775808'", "9223372036854775807", "0")),
    Case("oid", "long", ("'4294967295'", "'2147483648'", "0")),
    Case("float4", "float", ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "0", "'1e-45'", "3.4028235e38", "0.1")),
    Case(
        "float8", "double", ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "'5e-324'", "1.7976931348623157e308", "0.1")
    ),
    Case(
        "numeric",
        "string",
        (
            "'NaN'",
            "'Infinity'",
            "'-Infinity'",
            "1.50",
            "1.5",
            "0",
            "('1' || repeat('0', 999))",
            "'-0.' || repeat('7', 999)",
        ),
    ),
    Case("numeric(14,2)", "decimal(14,2)", ("-999999999999.99", "0.01", "-0.00"), unheld=("'NaN'",)),
    Case(
        "numeric(38,10)", "decimal(38,10)", ("'-' || repeat('9', 28) || '.' || repeat('9', 10)", "0"), unheld=("'NaN'",)
    ),
    Case("numeric(38,0)", "decimal(38,0)", ("repeat('9', 38)", "'-' || repeat('9', 38)")),
    Case("numeric(38,38)", "decimal(38,38)", ("'0.' || repeat('9', 38)", "'-1e-38'")),
    Case("numeric(39,0)", "string", ("repeat('9', 39)", "'NaN'")),
    Case(
        "numeric(1000,500)",
        "string",
        ("repeat('9', 500) || '.' || repeat('9', 500)", "'0.' || repeat('0', 499) || '1'"),
    ),
    Case("numeric(5,-2)", "decimal(7,0)", ("9999949", "-149", "49")),
    Case("numeric(3,5)", "decimal(5,5)", ("0.00999", "-0.00001", "0")),
    Case("numeric(1,-37)", "decimal(38,0)", ("'9' || repeat('0', 37)",)),
    Case("numeric(2,-37)", "string", ("'99' || repeat('0', 37)",)),
    Case("money", "string", ("'-92233720368547758.08'", "'0.01'", "'1234567.89'")),
    Case("text", "string", _TEXTS),
    Case("varchar", "string", _TEXTS[:4]),
    Case("varchar(5)", "string", ("'üüüüü'", "''")),
    Case("char(5)", "string", ("'ab'", "''", "'  x'")),
    Case("name", "string", ("'a'", "repeat('x', 63)")),
    Case('"char"', "string", ("'a'", r"E'\\200'", r"E'\\377'", "''")),
    Case("bytea", "binary", (f"(SELECT {_ALL_BYTES} FROM generate_series(0, 255) g)", "''", r"'\x00'", r"'\x5c5c78'")),
    Case(
        "date",
        "date",
        (
            "'0001-01-01'",
            "'4714-11-24 BC'",
            "'5874897-12-31'",
            "'1582-10-10'",
            "'2000-02-29'",
            "'0001-12-31 BC'",
            "'10000-01-01'",
        ),
        unheld=("'infinity'", "'-infinity'"),
    ),
    Case(
        "timestamp",
        "timestamp",
        (
            "'4714-11-24 00:00:00 BC'",
            "'0001-02-29 12:00:00.000001 BC'",
            "'2026-01-02 03:04:05.6'",
            "'1969-12-31 23:59:59.999999'",
            "'9999-12-31 23:59:59.999999'",
            "'12345-06-07 08:09:10.111213'",
            "'294247-01-10 04:00:54.775806'",
        ),
        unheld=("'infinity'", "'-infinity'", "'294247-01-10 04:00:54.775807'", "'294276-12-31 23:59:59.999999'"),
    ),
    Case("timestamp(0)", "timestamp", ("'2026-01-02 03:04:05.6'",)),
    Case(
        "timestamptz",
        "timestamptz",
        (
            "'4714-11-24 00:00:00+00 BC'",
            "'2026-01-02 03:04:05.6-15:59:59'",
            "'1883-11-18 12:03:58 America/New_York'",
            "'10000-01-01 00:00:00+00'",
            "'294247-01-10 04:00:54.775806+00'",
        ),
        unheld=("'infinity'", "'-infinity'", "'294247-01-10 04:00:54.775807+00'", "'294276-12-31 23:59:59.999999+00'"),
    ),
    Case("time", "string", ("'24:00:00'", "'00:00:00.000001'", "'23:59:60'")),
    Case("timetz", "string", ("'24:00:00+00'", "'12:34:56.7-15:59:59'", "'00:00:00+05:30'")),
    Case(
        "interval",
        "string",
        (
            "'1 year -2 mons +3 days -04:05:06.000007'",
            "'178000000 years'",
            "'0'",
            "'-00:00:00.000001'",
            "'-1 mon 1 day'",
        ),
    ),
    Case("uuid", "uuid", ("'00000000-0000-0000-0000-000000000000'", "'FFFFFFFF-ffff-ffff-ffff-ffffffffffff'")),
    Case(
        "json",
        "string",
        (
            """'{"a": 1, "a": 2,  "b":null}'""",
            "'null'",
            r"""'"\u0000 \ud83d\ude00 é"'""",
            "'[1e400, -0.0]'",
            "'  {}  '",
        ),
    ),
    Case("jsonb", "string", ("""'{"b": 1, "a": 2, "a": 3}'""", "'null'", "'[1e400, -0.0, 1.50]'", r"""'"\"\\"'""")),
    Case("jsonpath", "string", ("'$.a[*] ? (@ > 1)'",)),
    Case(
        "xml",
        "string",
        ("convert_to('<a b=\"1\">ü &amp;</a>', 'UTF8')", "convert_to('<?xml version=\"1.0\"?><a/>', 'UTF8')"),
    ),
    Case("bit(3)", "string", ("B'101'",)),
    Case("varbit", "string", ("B''", "B'1011'")),
    Case("inet", "string", ("'10.0.0.1'", "'10.0.0.1/8'", "'::1/128'", "'2001:db8::/32'")),
    Case("cidr", "string", ("'10.0.0.0/8'", "'::/0'")),
    Case("macaddr", "string", ("'08:00:2b:01:02:03'",)),
    Case("macaddr8", "string", ("'08:00:2b:01:02:03:04:05'",)),
    Case("tsvector", "string", ("$$'it''s':1A,2 'b\\\\c'$$", "''")),
    Case("tsquery", "string", ("$$'a' & !'b' <2> 'c d'$$", "''")),
    Case("point", "string", ("'(1,-2.5)'", "'(NaN,Infinity)'", "'(-0,1e300)'")),
    Case("line", "string", ("'{1,2,3}'",)),
    Case("lseg", "string", ("'[(1,2),(3,4)]'",)),
    Case("box", "string", ("'(3,4),(1,2)'",), array="string"),
    Case("path", "string", ("'((1,2),(3,4))'", "'[(1,2),(3,4)]'")),
    Case("polygon", "string", ("'((1,2),(3,4),(5,6))'",)),
    Case("circle", "string", ("'<(1,2),3>'",)),
    Case("int4range", "string", ("'[1,5)'", "'empty'", "'(,)'")),
    Case("int8range", "string", ("'[1,9223372036854775807)'",)),
    Case("numrange", "string", ("'[1.50,NaN]'", "'(-infinity,1)'")),
    Case("daterange", "string", ("'[2026-01-01,infinity]'", "'[,2026-01-01 BC)'")),
    Case("tsrange", "string", ("'[\"2026-01-01 00:00:00.5\",infinity)'",)),
    Case("tstzrange", "string", ("'[\"2026-01-01 00:00:00+05:30\",)'",)),
    Case("int4multirange", "string", ("'{[1,2),[5,9)}'", "'{}'")),
    Case("int8multirange", "string", ("'{[1,2)}'",)),
    Case("nummultirange", "string", ("'{[1.5,2.50)}'",)),
    Case("datemultirange", "string", ("'{[2026-01-01,2026-02-01)}'",)),
    Case("tsmultirange", "string", ('\'{["2026-01-01 00:00:00","2026-02-01 00:00:00")}\'',)),
    Case("tstzmultirange", "string", ("'{[\"2026-01-01 00:00:00+02\",)}'",)),
    Case("pg_lsn", "string", ("'FFFFFFFF/FFFFFFFF'", "'0/0'")),
    Case("pg_snapshot", "string", ("'10:20:10,14,15'",)),
    Case("txid_snapshot", "string", ("'10:20:10,14,15'",)),
    Case("xid", "string", ("'4294967295'",)),
    Case("xid8", "string", ("'18446744073709551615'",)),
    Case("cid", "string", ("'4294967295'",)),
    Case("tid", "string", ("'(4294967295,65535)'",)),
    Case("refcursor", "string", ("'a \"b\"'",)),
    Case("aclitem", "string", ("'postgres=r/postgres'",)),
    Case("regclass", "string", ("'pg_class'", "'public.\"Odd name\"'", "'2147483649'", "0")),
    Case("regtype", "string", ("'int4'", "'public.mood'", "'timestamptz[]'")),
    Case("regproc", "string", ("'now'",)),
    Case("regprocedure", "string", ("'abs(int4)'",)),
    Case("regoper", "string", ("'pg_catalog.||/'",)),
    Case("regoperator", "string", ("'+(int4,int4)'",)),
    Case("regrole", "string", ("'postgres'",)),
    Case("regnamespace", "string", ("'public'",)),
    Case("regconfig", "string", ("'english'",)),
    Case("regdictionary", "string", ("'simple'",)),
    Case("regcollation", "string", ("'\"C\"'",)),
    Case("int2vector", "string", ("'1 2 3'", "''"), array="string"),
    Case("oidvector", "string", ("'1 4294967295'",), array="string"),
    Case("gtsvector", "string", ()),
    Case(
        "pg_node_tree", "string", ("(SELECT conbin FROM pg_constraint WHERE conbin IS NOT NULL LIMIT 1)",), array=None
    ),
)

USERS = (
    Case("optional_price", "decimal(10,2)", ("-999.99", "99999999.99"), unheld=("'NaN'",)),
    Case("wide", "long", ("'4294967295'",)),
    Case("moment", "timestamptz", ("'2026-01-02 03:04:05.6789+00'",), unheld=("'infinity'",)),
    Case(
        "words", "list<string>", ("ARRAY['a', NULL, 'NULL', '', '{', 'b,c']",), array="string", unheld=("'{{a},{b}}'",)
    ),
    Case("more_words", "list<string>", ("ARRAY['a']", "'{}'"), array="string", unheld=("'[2:3]={a,b}'",)),
    Case("mood", "string", ("'ok'", "'not ok'", "'qu''o\"te'", "'ünï'")),
    Case("calm", "string", ("'ok'",)),
    Case("pair", "string", ("ROW(1, 'a \"q\" , ) ( \\ ')", "ROW(NULL, NULL)", "ROW(1, '')")),
    Case("nested", "string", ("ROW(ROW(1, 'x,y'), ARRAY['a\"', NULL], 0.1, '2026-01-02 03:04:05+05:30')",)),
    Case("good_pair", "string", ("ROW(1, 'x')",)),
    Case("float8range_", "string", ("'[0.1,1e300)'",)),
    Case("stranger", "string", ("'anything'", "''", r"E'\\\\ \"'")),
    Case("citext", "string", ("'MiXed'", "''")),
    Case("hstore", "string", ("""'"a b"=>"1", c=>NULL, "q\\""=>""'""", "''")),
    Case("ltree", "string", ("'Top.Science'", "''")),
    Case("lquery", "string", ("'Top.*{0,2}.a|b'",)),
    Case("ltxtquery", "string", ("'a & !b'",)),
    Case("cube", "string", ("'(1,2),(3,4)'", "'(0.1)'")),
    Case("seg", "string", ("'1.50 .. 2.5e3'", "'< 3'")),
    Case("isbn13", "string", ("'978-0-393-04002-9'",)),
    Case("query_int", "string", ("'1&(2|3)'",)),
    Case("vector", "list<float>", ("'[1,-2.5,3.4028235e38,1e-45,-0]'", "'[0.1]'"), array="list<string>"),
    Case("vector(3)", "list<float>", ("'[1,2,3]'",), array="list<string>"),
    Case("halfvec", "list<float>", ("'[0.1,65504,-6e-8]'",), array="list<string>"),
    Case("sparsevec", "string", ("'{1:1.5,3:2}/5'",)),
)


def on_this_server(case: Case) -> bool:
    """Whether the server that the tests run on has the type."""
    brought_by = _BROUGHT_BY.get(case.type)
    return major_version() >= _SINCE.get(case.type, 0) and (brought_by is None or brought_by in EXTENSIONS)


def array_of(case: Case) -> Case | None:
    """The case of the type's arrays: every value of it, NULLs between them, an empty array, and arrays that no list can
    hold."""
    if case.array is None:
        return None
    lake = f"list<{case.lake}>" if case.array == "list" else case.array
    every = ", ".join(f"({value})::{case.type}" for value in case.values)
    first = f"({case.values[0]})::{case.type}" if case.values else f"NULL::{case.type}"
    # An array of a domain over an array prints its elements quoted, so that it looks one-dimensional.
    unheld: tuple[str, ...] = (
        f"ARRAY[ARRAY[{first}], ARRAY[NULL]]::{case.type}[]",
        f"array_fill({first}, ARRAY[2], ARRAY[0])",
    )
    unheld += tuple(f"ARRAY[{first}, ({value})::{case.type}]" for value in case.unheld) if case.array == "list" else ()
    held = (f"ARRAY[{every}]::{case.type}[]", f"ARRAY[NULL, {first}, NULL]::{case.type}[]", "'{}'", "'{NULL}'")
    if lake == "string":
        return Case(f"{case.type}[]", lake, held + unheld)
    return Case(f"{case.type}[]", lake, held, unheld=unheld)
