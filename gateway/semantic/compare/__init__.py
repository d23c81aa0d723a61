"""Whether two answers say the same."""
