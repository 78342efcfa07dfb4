"""Descriptions of relations from PostgreSQL's catalogs, and the decision which relations can be mirrored."""
