"""What tells others how a pump is: metrics, traces, and the readings that the HTTP port shows."""
