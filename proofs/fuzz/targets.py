"""The targets, by name: each takes any bytes, and raises only if the program breaks a promise.

They are imported when they are asked for, so that a fuzzer can instrument what they import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "stream_targets": ("message", "segment", "stream", "value", "document", "variant"),
    "file_targets": ("manifest", "container", "puffin", "vector", "csv", "jsonl", "declaration", "access_file"),
    "rest_target": ("warehouse", "requests"),
}
NAMES: Final = tuple(name for names in MODULES.values() for name in names)
CORPUS: Final = Path(__file__).with_name("corpus")
"""A directory for each target: inputs that reach other code than the others, and those that have found a defect."""


def target(name: str) -> Callable[[bytes], None]:
    """The target of this name."""
    module = next(module for module, names in MODULES.items() if name in names)
    function: Callable[[bytes], None] = getattr(import_module(f"proofs.fuzz.{module}"), name)
    return function


def corpus(name: str) -> Iterator[Path]:
    """The inputs of a target, in order."""
    return (path for path in sorted((CORPUS / name).iterdir()) if path.is_file())
