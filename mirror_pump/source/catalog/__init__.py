"""The catalog in schema modak, and a reader's side of the seam protocol."""
