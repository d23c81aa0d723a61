"""What may be cached, for whom, and for how long: pure decisions steered by YAML."""
