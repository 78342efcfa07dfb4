"""Models of the protocol that are searched exhaustively (docs/proof.md). Nothing of the program imports them."""
