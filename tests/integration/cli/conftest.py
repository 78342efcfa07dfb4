"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def clean_environment(no_settings: None) -> None:
    """Also for tests that start the program as a process of its own."""
