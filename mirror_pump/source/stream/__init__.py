"""The replication slot, its stream, the publication, and who leads."""
