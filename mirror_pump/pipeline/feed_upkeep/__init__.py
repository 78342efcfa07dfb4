"""Keeps change feeds short and cheap to read: merges of their files, and changes that are older than a feed keeps."""
