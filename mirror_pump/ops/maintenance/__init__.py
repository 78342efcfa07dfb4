"""Maintenance of lake tables: what is due, and doing it."""
