"""May a stored answer be found by meaning, and does it fit."""
