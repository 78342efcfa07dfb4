"""Landings: the one place that moves pointers of mirrored lake tables and of change feeds."""
