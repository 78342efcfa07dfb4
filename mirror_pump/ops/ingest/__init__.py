"""Bulk ingestion: rows of files go straight to the lake, and to the heap where they belong there."""
