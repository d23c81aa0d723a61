"""How good semantic hits are, on the evaluation data: what `make eval` measures and prints."""
