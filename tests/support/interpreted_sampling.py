"""The sampler with the kernel that draws; see ``interpreter`` for the process that it runs in."""

from sampling_rows import row, sample

from backend.executor.sampler.triton import draw_by_kernel


def sample_by_kernel(logits, batch):
    """Return the token of each row; ``batch`` holds each one's sampling fields."""
    return sample(logits, [row(**fields) for fields in batch], draw_by_kernel)
