"""The options of a table: one entry for each, and what follows from the entries."""
