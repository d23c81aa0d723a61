"""Declared context made shorter before it is sent; ``plan.begin`` is the way in."""
