"""Iceberg's REST catalog: one door to the mirror for every engine, read-only, with all tables at one frontier."""
