"""Compares the heap with the lake, row by row."""
