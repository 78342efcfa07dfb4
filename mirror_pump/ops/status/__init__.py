"""What the mirror holds, how far behind it is, and what needs a person."""
