"""Declared context made shorter before it is sent."""
