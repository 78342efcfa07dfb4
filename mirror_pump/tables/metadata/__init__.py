"""What plans and people need of the metadata of any engine's tables."""
