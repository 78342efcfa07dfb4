"""Iceberg's REST catalog: one door for every engine to the mirror, with all tables at one frontier, and to lake tables."""
