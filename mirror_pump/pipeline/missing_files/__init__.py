"""Notices files of the lake that are gone, and which table is concerned, or the whole storage."""
