"""What PostgreSQL says about relations, and what of it can be mirrored."""
