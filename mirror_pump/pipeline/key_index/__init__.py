"""The key indexes of a pump: which tables have one, how it is built, and how commits use and update it."""
