"""How good semantic hits are, on the evaluation data: what `make eval` measures and prints."""

import sys
from pathlib import Path

# Behind everything else: a script's path has its own folder, and not the one that holds `tools`.
sys.path.append(str(Path(__file__).parents[2]))
