"""Reads files that people hand over: as much as such a file may have, whatever is behind its name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mirror_pump.errors import UsageError


def read_handed(path: Path, most: int, what: str, remedy: str) -> bytes:
    """The content of a file, or of a pipe. Raises UsageError if it cannot be read, or has more than `most` bytes, as
    /dev/zero has. `what` it is to be, for the message."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"cannot read {what} {path}: {error.strerror}", remedy) from error
    if len(content) > most:
        raise UsageError(f"{path} is not {what}: it has more than {most:,} bytes", remedy)
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises OSError, and ValueError for what is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def problems_of(error: ValidationError) -> str:
    """What does not fit in a document, each with the place where it stands."""
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())


def has_nul(value: object) -> bool:
    """Whether a text in a document has the character NUL, which PostgreSQL does not take."""
    if isinstance(value, dict):
        return any(map(has_nul, (*value.keys(), *value.values())))
    if isinstance(value, list):
        return any(map(has_nul, value))
    return isinstance(value, str) and "\0" in value
