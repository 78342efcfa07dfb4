"""Damages files of the lake, as crashes and faulty disks do."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest

Damage = Callable[[Path], None]


def cut_off(path: Path) -> None:
    """Cuts off the last third, as after a crash of a machine that does not flush."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def flip(path: Path) -> None:
    """Flips the bits of a Parquet file's footer, but not its length; of any other file, of the last half."""
    content = path.read_bytes()
    parquet = path.suffix == ".parquet"
    size = int.from_bytes(content[-8:-4], "little") if parquet else len(content) // 2
    end = len(content) - (8 if parquet else 0)
    begin = end - size
    path.write_bytes(content[:begin] + bytes(byte ^ 0x5A for byte in content[begin:end]) + content[end:])


DAMAGES = [pytest.param(cut_off, id="cut off"), pytest.param(flip, id="flipped")]


class DamageKind(Enum):
    """What has become of a file."""

    GONE = "gone"
    CUT = "cut"
    FLIPPED = "flipped"
    EMPTY = "empty"
    ANOTHER = "another"
    """It has the content of a file of another table."""

    def apply(self, path: Path, another: Path) -> None:
        """Damages a file. `another`: a file of the same kind, of another table."""
        match self:
            case DamageKind.GONE:
                path.unlink()
            case DamageKind.CUT:
                cut_off(path)
            case DamageKind.FLIPPED:
                flip(path)
            case DamageKind.EMPTY:
                path.write_bytes(b"")
            case DamageKind.ANOTHER:
                path.write_bytes(another.read_bytes())
