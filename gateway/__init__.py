"""The proxy: HTTP in, lookup, forward, store, HTTP out."""
