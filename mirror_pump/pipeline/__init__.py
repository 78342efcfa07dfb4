"""The pump: from the replication stream and the heap to commits in the lake."""
