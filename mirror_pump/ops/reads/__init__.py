"""Reading mirrored tables at one moment."""
