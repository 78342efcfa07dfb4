"""Tasks that bring rows of the lake back into the heap."""
