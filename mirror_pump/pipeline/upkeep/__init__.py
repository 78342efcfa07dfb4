"""Background jobs that keep lake tables cheap to read while the pump runs."""
