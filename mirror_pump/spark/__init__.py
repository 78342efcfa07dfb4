"""Mirrored tables, and their changes, as Spark DataFrames: `mirror_pump.spark.read` and `read_changes`."""

from __future__ import annotations

from mirror_pump.spark.changes import ChangesDataFrame, read_changes
from mirror_pump.spark.reader import PinnedDataFrame, read

__all__ = ["ChangesDataFrame", "PinnedDataFrame", "read", "read_changes"]
