"""Iceberg's REST catalog: every engine's door to the mirror, with all tables at one frontier, and to lake tables."""
