"""`mirror-pump load`: reads a file or a stream, and writes it to a registered table once, under a label."""

LOAD_PATH = "/load/"
"""The only paths of the HTTP port whose requests write. Beside them, those of the catalog may have a body, which is
thrown away."""
