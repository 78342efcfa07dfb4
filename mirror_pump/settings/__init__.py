"""What users and tests can set: where each value is from, its unit, its limits and its reference."""
