"""The pump: its sessions, its lead, and the services of one session."""
