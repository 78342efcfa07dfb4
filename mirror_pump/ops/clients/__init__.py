"""Who uses the HTTP port, and what each client may do there."""
