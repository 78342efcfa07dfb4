"""Checks everything that a mirror needs, on this machine, in the database and in the storage: `mirror-pump doctor`."""
