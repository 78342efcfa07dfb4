"""A browser that cannot start says itself why, in the reason for which tests of the status page are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chromium import NoBrowser, chromium


def test_why_a_browser_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\necho 'libnss3.so: cannot open shared object file' >&2\nexit 127\n")
    browser.chmod(0o755)
    monkeypatch.setenv("MIRROR_PUMP_TEST_CHROMIUM", str(browser))
    with pytest.raises(NoBrowser, match=r"libnss3\.so: cannot open .*\. Install the package chromium"), chromium():
        pass
