"""Changes of tables and of the publication: how the mirror decides about them and carries out the decision."""
