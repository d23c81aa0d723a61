"""The engine's kernels and its CUDA path: checked, then timed; ``first_card.py`` runs it."""
