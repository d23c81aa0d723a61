"""Rewriting of prompts so that the upstream's prefix cache hits; pure, ``plan.rewrite`` is the way in."""
