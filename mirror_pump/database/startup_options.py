"""Settings in libpq's parameter `options`, which a connection sends in its startup packet."""

from __future__ import annotations

import re

MIRROR_OPTION = "mirror_pump.mirror"
"""The name of a mirror, in connection strings of ours."""


def option_values(options: str, name: str) -> list[str]:
    """The values of a setting in libpq's parameter `options`, in their order. It has words `-c name=value` or
    `--name=value`, in which a backslash escapes the next character."""
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\s\\])+", options)]
    values = []
    for before, word in zip(["", *words], words, strict=False):
        setting = word if before == "-c" else word[2:] if word.startswith(("-c", "--")) else ""
        key, _, value = setting.partition("=")
        if key.replace("-", "_").lower() == name:
            values.append(value)
    return values
