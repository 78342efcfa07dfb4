"""Tasks that stay in Spark's slots and take the pump's work from the driver, by a socket each."""
