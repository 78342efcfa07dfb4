"""Asks before something leaves."""

from __future__ import annotations

import sys

import typer

from mirror_pump.errors import TableError, UsageError


def confirm(question: str, *, about_to: str, remedy: str, refused: str) -> None:
    """Asks for confirmation. Raises TableError if refused (`refused` says what was not done), UsageError without a
    terminal to ask on. `about_to`: what happens if it is confirmed, as a sentence."""
    if not sys.stdin.isatty():
        raise UsageError(f"{about_to}, and there is no terminal to ask for confirmation", remedy)
    if not typer.confirm(question, default=False, err=True):
        raise TableError(refused)
