"""Names of columns as engines compare them, and names for the columns that the program adds."""

from __future__ import annotations

from collections.abc import Collection


def folded(name: str) -> str:
    """A form of the name that is equal for names that Spark considers equal (java.lang.String.equalsIgnoreCase). Each
    character is converted to upper and then to lower case, if the result is a single character."""
    upper = (character.upper() if len(character.upper()) == 1 else character for character in name)
    return "".join(character.lower() if len(character.lower()) == 1 else character for character in upper)


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with underscores at its end until no engine takes it for one of those in `taken`, which are folded."""
    while folded(name) in taken:
        name += "_"
    return name
