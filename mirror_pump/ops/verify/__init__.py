"""Heap against lake, row by row."""
