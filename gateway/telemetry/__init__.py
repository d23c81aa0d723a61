"""Metrics, traces, logs and the decision log."""
