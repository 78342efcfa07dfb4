"""The exact map from keys to the places of live rows."""
