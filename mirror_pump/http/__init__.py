"""The HTTP port: its server, who may use it, and what a pump mounts at it."""
