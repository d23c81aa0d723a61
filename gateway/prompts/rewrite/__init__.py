"""Prompts rewritten so that the upstream's prefix cache hits."""
