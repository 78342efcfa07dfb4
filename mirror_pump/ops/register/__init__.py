"""Registers tables with the mirror and unregisters them."""
