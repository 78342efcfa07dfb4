"""From table metadata, a predicate and a snapshot to the files to read. Knows no catalog."""
