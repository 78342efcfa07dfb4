"""The publish transaction, and what it stages in the lake before."""
