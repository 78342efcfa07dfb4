"""Settings in libpq's parameter `options`, which a connection sends in its startup packet."""

from __future__ import annotations

import re
from functools import lru_cache

MIRROR_OPTION = "mirror_pump.mirror"
"""The name of a mirror, in connection strings of ours."""


def option_values(options: str, name: str) -> list[str]:
    """The values of a setting in libpq's parameter `options`, in their order. It has words `-c name=value` or
    `--name=value`, in which a backslash escapes the next character."""
    return [value for key, value in _settings(options) if key == name]


@lru_cache(maxsize=32)
def _settings(options: str) -> tuple[tuple[str, str], ...]:
    """All settings, with their names in one spelling. Each connection looks for several, in the same text."""
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\s\\])+", options)]
    settings = []
    for before, word in zip(["", *words], words, strict=False):
        setting = word if before == "-c" else word[2:] if word.startswith(("-c", "--")) else ""
        key, _, value = setting.partition("=")
        settings.append((key.replace("-", "_").lower(), value))
    return tuple(settings)
