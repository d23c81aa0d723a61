"""Benchmarks are scripts; what they are made of is tested like anything else."""

import sys
from pathlib import Path

# Behind everything else: names such as `store` and `load` are those of scripts.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
