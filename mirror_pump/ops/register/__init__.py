"""Puts tables under the mirror and takes them out."""
