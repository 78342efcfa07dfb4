"""Who names a table's newest metadata: one protocol with compare-and-swap, and its implementations."""
