"""Reads change feeds: the changes of an interval between two frontiers."""
