"""Fixtures of the HTTP port's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.chromium import NoBrowser, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, or a skip that says how to get one."""
    try:
        with chromium() as running:
            yield running
    except NoBrowser as error:
        pytest.skip(str(error))
