"""One upstream call for many identical misses."""
