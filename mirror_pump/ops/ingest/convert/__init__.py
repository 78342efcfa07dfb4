"""Second stage: values as an INSERT would store them, by Arrow where that is certain, else by PostgreSQL."""
