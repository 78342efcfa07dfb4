"""Labelled loads on the side of PostgreSQL: where rows go, a temporary table for them, the writes, and the labels."""
