"""Shows and changes the heap retention of tables, for the command line."""
