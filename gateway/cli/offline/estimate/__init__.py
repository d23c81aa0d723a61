"""``refrain estimate``: what the cache would have saved, from an exported log."""
