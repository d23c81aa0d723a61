"""Triton kernels, each beside its plain torch oracle in ``reference``."""
