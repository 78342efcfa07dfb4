"""Commits: staged changes of a table, the archive branch, and the catalog row that makes them visible."""
