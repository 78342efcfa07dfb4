"""Tasks that bring rows into the lake: segments of the stream, and chunks of the heap."""
