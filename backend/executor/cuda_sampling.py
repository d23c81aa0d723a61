"""Draws by the sampling kernel, in place of the sampler's sorts."""

import torch
from torch import Tensor

from backend.executor.sampling_batch import DrawGroup
from backend.kernels.sampling import SamplingRows, sample_tokens


def draw_on_device(logits: Tensor, group: DrawGroup, keys: Tensor) -> Tensor:
    """``executor.sampler.Draw``: the same tokens for the same keys, but for rounding."""
    log_min_p = group.log_min_p
    if log_min_p is None:
        log_min_p = torch.full_like(group.temperature, -torch.inf)
    rows = SamplingRows(group.temperature, group.top_k, group.top_p, log_min_p, keys)
    # Rows that are not finite are told by the sampler. Their token may be looked up before.
    return sample_tokens(logits, rows).clamp_(min=0)
