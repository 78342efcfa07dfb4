"""Initial copies of tables."""
