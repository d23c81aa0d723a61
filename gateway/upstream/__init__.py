"""Servers that the gateway calls: one or several, and who shares a call."""
