"""The table metadata document: partition specs, snapshots, their summaries, and the document that comes next."""
