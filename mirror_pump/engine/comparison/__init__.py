"""Tasks that compare a heap partition with the lake, by hashes of whole rows."""
