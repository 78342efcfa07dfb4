"""DuckDB within this process."""
