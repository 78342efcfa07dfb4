"""Prepares a database for the mirror, and completes settings from what was stored in it."""
