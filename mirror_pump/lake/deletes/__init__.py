"""The rows that a lake table hides by position, and the forms in which files say so: one for each format version."""
