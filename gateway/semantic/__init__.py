"""Whether a question may be answered by meaning, and whether a stored answer fits."""
