"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def clean_environment(no_settings: None) -> None:
    """Clears the environment of settings, for tests that start the program as a separate process too."""
