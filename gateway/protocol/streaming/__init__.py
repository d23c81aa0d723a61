"""Streamed replies: events, their assembly into one result, and back."""
