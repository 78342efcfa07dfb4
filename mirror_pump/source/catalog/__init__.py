"""The catalog in schema modak, and the seam protocol as readers use it."""
