"""Servers that the gateway calls, one or several, and the calls that requests share."""
