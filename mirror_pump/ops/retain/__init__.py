"""What people ask of heap retention and change of it."""
