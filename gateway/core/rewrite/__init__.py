"""Prompts rewritten so that the upstream's prefix cache hits; ``plan.rewrite`` is the way in."""
