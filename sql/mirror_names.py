"""Names that each mirror of a database has for itself, in texts of ours: SQL, messages, commands that are printed.

A mirror without a name has schema `modak`, triggers `zz_modak_row`, event triggers `mirror_pump_ddl` and so on. With a
name they are `modak_NAME`, `zz_modak_NAME_row`, `mirror_pump_NAME_ddl`. Texts are written with the names of the former.
`marked` puts a mark behind each name that is a mirror's own, and `of_mirror` puts the ending in the place of the marks.
Statements are marked where they are defined, before anything of a user's is put into them, and get their ending where
they are sent (mirror_pump/database/catalog_cursor.py): so what users wrote is never taken for a name of ours. The mark
is a character that no text in PostgreSQL can have.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

NAME = re.compile(r"[a-z0-9_]{1,32}")
"""A mirror's name. With a trigger's around it, it is shorter than names in PostgreSQL may be."""

SUFFIX = "\0"
"""The mark: stands for nothing, or for `_NAME`."""
OPTION = SUFFIX * 2
"""The mark behind a command that is printed: stands for nothing, or for ` --mirror NAME`."""

SCHEMA = f"modak{SUFFIX}"
"""The schema of the catalog, for statements that are composed."""

DEFAULT_SCHEMA = "modak"
"""That of the mirror without a name. The others' begin with it and an underscore."""

_NAMES = re.compile(
    r"(?<![\w.])(?:modak(?![\w\0])|zz_modak(?=_(?:row|truncate)\b)|mirror_pump(?=_(?:truncate|ddl|drop|rewrite)\b)"
    # The prefix of messages in the stream.
    r"|(?<=pg_logical_emit_message\(true, ')mirror-pump(?!\0))"
)
_SPOKEN = re.compile(
    r"(?:(?<=[Ss]chema )|(?<=SCHEMA ))modak(?!\w)|(?<![\w.\"'])modak(?=\.(?P<object>[a-z_]+))"
    r"|zz_modak(?=_(?:row|truncate)\b)"
)
_CREATED = re.compile(r"CREATE [A-Z ]+ modak\.(\w+)")
COMMANDS = (
    "apply|changes|connect|doctor|export|ingest|init|load|maintain|pause|policy|reader|reconcile|register|resume|resync"
    "|retain|run|serve|sql|status|unregister|verify|wait|where"
)
"""Those that have `--mirror`, and no commands below them."""
_COMMAND = re.compile(
    rf"(?<![\w/])mirror-pump (?:{COMMANDS}|(?:follow|moment|profile) [a-z]+(?:-[a-z]+)*)(?![\w\0-])(?! --mirror)"
)


def marked(text: str) -> str:
    """`text` with a mark behind each name that is a mirror's own, and behind each command, unless it is there."""
    return _COMMAND.sub(lambda command: command[0] + OPTION, _NAMES.sub(lambda name: name[0] + SUFFIX, text))


def spoken(text: str, mirror: str | None) -> str:
    """What is said to people, for the mirror of this name: its schema, its triggers, and commands to paste. It may have
    names of users' tables, so a name of ours is one only where it stands as ours do."""
    if mirror is None:
        return of_mirror(text, None)
    named = _SPOKEN.sub(lambda name: name[0] + SUFFIX if name["object"] in _objects() else name[0], text)
    return of_mirror(_COMMAND.sub(lambda command: command[0] + OPTION, named), mirror)


@cache
def _objects() -> frozenset[str | None]:
    """The names of what a catalog has, and None. In the lake each mirror has a `modak.transactions`."""
    files = resources.files("sql")
    texts = (
        file.read_text(encoding="utf-8")
        for room in ("migrations", "functions", "queries")
        for file in (files / room).iterdir()
    )
    return frozenset((None, *(name for text in texts for name in _CREATED.findall(text))))


def of_mirror(text: str, mirror: str | None) -> str:
    """A marked text as it is for the mirror of this name; None: for the one without."""
    if SUFFIX not in text:
        return text
    if mirror is None:
        return text.replace(OPTION, "").replace(SUFFIX, "")
    return text.replace(OPTION, f" --mirror {mirror}").replace(SUFFIX, f"_{mirror}")
