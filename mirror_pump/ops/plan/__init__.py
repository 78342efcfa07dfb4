"""Says what a mirror of a database would be and cost, before anything is set up: `mirror-pump doctor --plan`."""
