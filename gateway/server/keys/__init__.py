"""Gateway keys: their lines in a file, and what each may use."""
