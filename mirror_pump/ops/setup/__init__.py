"""Prepares a database for the mirror, and completes settings from those stored in the database."""
