"""From table metadata, a predicate and a snapshot to the files to read, and to their rows. Knows no catalog."""
