"""`mirror-pump load`: reads a file or a stream, and writes it to a registered table once, under a label."""
