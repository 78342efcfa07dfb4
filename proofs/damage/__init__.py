"""Damages a small mirror in many ways, one after the other, and looks who notices: `python -m proofs.damage`."""
