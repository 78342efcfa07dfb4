"""Tasks that read files of the lake: rows by key, the keys of files, whole rows."""
