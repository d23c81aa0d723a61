"""Answers that come in pieces: decoded, put together, and rendered as streams again."""
