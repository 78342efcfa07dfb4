"""How a running pump tells others how it is: metrics, traces, and the HTTP port with probes and the status page."""
