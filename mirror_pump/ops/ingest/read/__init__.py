"""First stage: the files, and their rows in pieces that threads parse."""
