"""What the upstream is told of a prompt's stable prefix."""
