"""Entries in one SQLite file that workers share."""
