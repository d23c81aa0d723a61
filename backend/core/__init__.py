"""Torch-free decisions of the engine: sequences, blocks, scheduling, stopping."""
