"""Which tables have a key index, and how it is built and kept."""
