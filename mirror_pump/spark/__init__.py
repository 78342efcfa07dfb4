"""Mirrored tables as Spark DataFrames: `mirror_pump.spark.read`."""

from __future__ import annotations

from mirror_pump.spark.reader import PinnedDataFrame, read

__all__ = ["PinnedDataFrame", "read"]
