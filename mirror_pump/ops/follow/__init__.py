"""Followers: other catalogs that show the mirrored tables, after each publish."""
