"""Fifth stage: one transaction makes everything visible, or nothing; what is left of one that died is removed."""
