"""Entries in one SQLite file that workers share."""

SHARED_CHANGES = "REFRAIN_SHARED_CHANGES"
"""The variable that names the file through which workers tell one another of their changes."""
