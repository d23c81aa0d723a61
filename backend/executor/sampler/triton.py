"""Draws by the sampling kernel, in place of the sampler's sorts."""

from torch import Tensor

from backend.executor.sampler.batch import DrawGroup
from backend.kernels.sampling import SamplingRows, sample_tokens


def draw_by_kernel(logits: Tensor, group: DrawGroup, keys: Tensor) -> Tensor:
    """Draw the same tokens for the same keys as torch does, but for rounding."""
    rows = SamplingRows(group.temperature, group.top_k, group.top_p, group.log_min_p, keys)
    # Non-finite rows are reported elsewhere; the next embedding lookup has to stay in range.
    return sample_tokens(logits, rows).clamp_(min=0)
