"""What a table holds: its live files, its history, and figures about both."""
