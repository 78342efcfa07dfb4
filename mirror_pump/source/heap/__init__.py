"""Rows of the heap: by blocks, by key, and for reads."""
