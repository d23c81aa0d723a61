"""The sampler with the kernel that draws; see ``interpreter`` for the process that it runs in."""

from unittest.mock import patch

from sampling_rows import row, sample

from backend.executor.factory import draw_by_kernel
from backend.kernels import sampling


def sample_by_kernel(logits, batch):
    """Return the token of each row; ``batch`` holds each one's sampling fields."""
    return sample(logits, [row(**fields) for fields in batch], draw_by_kernel)


def count_passes(logits, rows):
    """Return the tokens of ``sample_tokens`` and how often it passed over the logits."""
    passes = 0

    def counted(kernel):
        def call(*arguments):
            nonlocal passes
            passes += 1
            return kernel(*arguments)

        return call

    names = ("_find_best", "_measure")
    kernels = {name: counted(getattr(sampling, name)) for name in names}
    # Not the whole dictionary: Triton adds names to it when it first reads a kernel.
    with patch.multiple(sampling, **kernels):
        tokens = sampling.sample_tokens(logits, rows)
    return tokens, passes
