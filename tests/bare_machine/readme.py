"""The commands of the README's code blocks."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def shell_block(section: str) -> list[str]:
    """The lines of the one code block of shell commands in a section, named by its heading."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", README.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for line in block.splitlines() if line.strip()]
