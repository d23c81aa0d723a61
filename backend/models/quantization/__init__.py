"""Weights in four and eight bits: published layouts, and linear maps that compute in them."""
