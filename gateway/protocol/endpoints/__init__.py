"""One file for each endpoint whose answers are cached: its record, and what only it needs."""
