"""Keeps generated text to a grammar."""
