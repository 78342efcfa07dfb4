"""The pump, its leadership, its sessions, and the services of one session."""
