"""Tables by pattern: `*` is any text, `?` any character, in a schema's name and in a table's. A name in double quotes
is meant as it stands; others are read in lower case, as PostgreSQL reads names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mirror_pump.errors import UsageError
from mirror_pump.model import TableName

EVERY_TABLE = "*.*"
_ANY = {"*": ".*", "?": "."}
_PART = re.compile(r'"(?:[^"]|"")*"|[^".]')
_REMEDY = "write it as a name in which * is any text and ? any character: 'sales.*', 'sales.order_?', '\"Sales\".*'"


@dataclass(frozen=True)
class TablePattern:
    """A pattern as typed."""

    text: str
    schema: re.Pattern[str] | None
    """None if the pattern has no schema."""
    name: re.Pattern[str]

    def matches(self, table: TableName) -> bool:
        """Whether both names match; any schema does where the pattern has none."""
        return self.name.fullmatch(table.name) is not None and self.matches_schema(table.schema)

    def matches_schema(self, schema: str) -> bool:
        """Whether the name of a schema matches."""
        return self.schema is None or self.schema.fullmatch(schema) is not None

    @property
    def has_any_name(self) -> bool:
        """Whether every name of a table matches."""
        return self.name.pattern == _ANY["*"]

    @property
    def matches_all(self) -> bool:
        """Whether every table matches."""
        return self.has_any_name and (self.schema is None or self.schema.pattern == _ANY["*"])


def is_pattern(text: str) -> bool:
    """Whether the text has a wildcard outside of quotes: no name has one."""
    return re.search(r"[*?]", re.sub(r'"(?:[^"]|"")*"?', "", text)) is not None


def parse_pattern(text: str) -> TablePattern:
    """Raises UsageError if the text is no pattern and no name."""
    parts, rest = [""], text.strip()
    while rest:
        if rest[0] == ".":
            parts.append("")
            rest = rest[1:]
            continue
        part = _PART.match(rest)
        if part is None:
            raise UsageError(f"{text!r} is not a pattern: a double quote is not closed", _REMEDY)
        word, rest = part[0], rest[part.end() :]
        parts[-1] += _ANY.get(word) or re.escape(
            word[1:-1].replace('""', '"') if word.startswith('"') else _lower(word)
        )
    if len(parts) > 2 or not all(parts):
        raise UsageError(f"{text!r} is not a pattern: it has {len(parts)} parts, or an empty one", _REMEDY)
    schema, name = parts if len(parts) == 2 else (None, parts[0])
    return TablePattern(text, None if schema is None else re.compile(schema, re.DOTALL), re.compile(name, re.DOTALL))


def _lower(text: str) -> str:
    """As PostgreSQL reads a name without quotes: in databases of UTF-8 it leaves letters beyond ASCII as they are."""
    return text.lower() if text.isascii() else text
