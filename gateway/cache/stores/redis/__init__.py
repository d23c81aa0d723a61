"""Entries in Redis or a Redis Cluster that gateways share."""
