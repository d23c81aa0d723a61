"""Attention over the paged KV cache: one seam, and a backend in each file."""
