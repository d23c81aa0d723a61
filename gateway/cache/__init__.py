"""Keys, lookup, admission and storage of answers."""
