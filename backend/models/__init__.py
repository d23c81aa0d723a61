"""Decoder models in plain torch, over a paged KV cache."""
