"""Copies mirrored tables again, after their slot was lost or because an operator asks for it."""
