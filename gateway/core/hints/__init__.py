"""What the upstream is told of a prompt's stable prefix; ``plan.hinted`` is the way in."""
