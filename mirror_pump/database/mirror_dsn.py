"""Which mirror of a database a connection string is for.

It says so by an option of the server's, so that what it says goes wherever the string goes: to threads, to tasks on
other machines, through other drivers. To the server the option is a setting without a meaning.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mirror_pump.database.startup_options import MIRROR_OPTION, option_values
from sql.mirror_names import NAME


def mirror_of(dsn: str) -> str | None:
    """The name of the mirror that a connection string is for; None: of the one without a name. Raises psycopg.Error if
    it cannot be read, or if that is no name."""
    values = option_values(str(conninfo_to_dict(dsn).get("options") or ""), MIRROR_OPTION)
    if values and not NAME.fullmatch(values[-1]):
        raise psycopg.ProgrammingError(f"{MIRROR_OPTION} is no name of a mirror")
    return values[-1] if values else None


def sets_mirror(dsn: str) -> bool:
    """Whether a connection string says a mirror, by a name or by what is none. One that cannot be read does not:
    connecting says what is wrong."""
    try:
        return bool(option_values(str(conninfo_to_dict(dsn).get("options") or ""), MIRROR_OPTION))
    except psycopg.ProgrammingError:
        return False


def with_mirror(dsn: str, mirror: str) -> str:
    """`dsn` for the mirror of this name. One that cannot be read stays as it is: connecting says what is wrong."""
    try:
        options = str(conninfo_to_dict(dsn).get("options") or "")
    except psycopg.ProgrammingError:
        return dsn
    if option_values(options, MIRROR_OPTION)[-1:] == [mirror]:
        return dsn
    options = f"{options} -c {MIRROR_OPTION}={mirror}".strip()
    # Of a parameter that is given twice the last one counts. The rest stays as it was written, for messages about it.
    if dsn.startswith(("postgresql://", "postgres://")):
        behind_user = re.sub(r"^\w+://([^@/]*@)?", "", dsn)
        separator = "" if behind_user.endswith(("?", "&")) else "&" if "?" in behind_user else "?"
        return f"{dsn}{separator}options={quote(options, safe='')}"
    return f"{dsn} {make_conninfo('', options=options)}"
