"""Computes steps: model runner, attention, sampler, KV cache, weights."""
