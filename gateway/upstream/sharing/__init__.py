"""Identical requests that share one upstream call."""
