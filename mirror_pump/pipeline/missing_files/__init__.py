"""Detects missing files of the lake, and decides whether one table has to fail or the whole storage is unavailable."""
