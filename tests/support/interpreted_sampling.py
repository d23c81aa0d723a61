"""The sampler with the kernel that draws; see ``interpreter`` for the process that it runs in."""

from sampling_rows import row, sample

from backend.executor.cuda_sampling import draw_on_device
from backend.executor.sampler import Sampler


def sample_by_kernel(logits, batch):
    """Return the token of each row; ``batch`` holds each one's sampling fields."""
    return sample(logits, [row(**fields) for fields in batch], Sampler(draw_on_device))
