"""Runs DuckDB within this process."""
