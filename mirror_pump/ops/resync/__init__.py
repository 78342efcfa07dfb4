"""Copies mirrored tables again, after their slot was lost or because somebody asks for it."""
