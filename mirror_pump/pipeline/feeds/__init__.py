"""Change feeds: what a batch brings to them, and their part of a publish (docs/design/change-feeds.md)."""
