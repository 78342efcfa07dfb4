"""An embedded PostgreSQL and helpers, for our tests, the demo, and yours."""
