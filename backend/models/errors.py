"""Failures of loading, told in one line that names the file, tensor or key at fault."""


class ModelLoadError(Exception):
    """The model cannot be served: something is missing, damaged, or not supported here."""
