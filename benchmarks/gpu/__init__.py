"""The engine's kernels and its CUDA path: checked, then timed; ``gpu_engine.py`` runs it."""
