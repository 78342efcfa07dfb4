"""The kinds of values that settings have, with their units: for checks, help, the example file and the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ByteSize, Field


@dataclass(frozen=True)
class Unit:
    """The unit of a setting's value, for `--help`, the example file and docs/settings.md."""

    metavar: str
    """The placeholder for the value in `--help`."""
    name: str
    """The unit, or the kind of text."""


@dataclass(frozen=True)
class DefaultText:
    """Describes a default that depends on the machine."""

    text: str


SECONDS = Unit("SECONDS", "seconds")
BYTES = Unit("SIZE", "bytes, also as 16MiB or 256kB")
ROWS = Unit("ROWS", "rows")
CORES = Unit("CORES", "cores")
NAME = Unit("NAME", "text")

Size = Annotated[ByteSize, Field(gt=0), BYTES]
"""A number of bytes above 0: `16MiB`, `256kB` or a plain number."""

SizeOrNone = Annotated[ByteSize, Field(ge=0), BYTES]
"""Like `Size`, but 0 is allowed and switches the feature off."""

Seconds = Annotated[float, Field(ge=0, le=86_400), SECONDS]
