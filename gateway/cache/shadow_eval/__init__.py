"""Cached answers compared with fresh ones, and what the comparisons teach."""
