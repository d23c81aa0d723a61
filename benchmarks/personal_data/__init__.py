"""Texts with and without personal data, for the benchmark of its detectors."""
