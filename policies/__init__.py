"""Decisions on caching: which requests, for which clients, and for how long. Pure; set by YAML."""
