"""Reads rows of the heap: by blocks for copies, by key for single rows, and under a condition for queries."""
