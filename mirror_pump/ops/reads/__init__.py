"""Reads mirrored tables as of one database snapshot or one frontier."""
