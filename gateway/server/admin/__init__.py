"""The operator's API."""
