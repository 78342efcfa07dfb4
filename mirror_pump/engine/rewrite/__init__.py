"""Conversion of equality deletes and merges of files: the plans, and the tasks that carry them out."""
