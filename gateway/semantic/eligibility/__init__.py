"""Which questions may be looked up by meaning."""
