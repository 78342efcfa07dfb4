"""Changes of tables and of the publication: what they mean for the mirror, and what they lead to."""
