"""Muon: momentum whose direction is made orthogonal, for the matrices inside the layers.

Written out here because torch's own runs in bfloat16, which a CPU without instructions for it
multiplies some fifty times slower than float32. (Method: K. Jordan et al., 2024.)
"""

from collections.abc import Iterable

import torch
from torch import Tensor

# Coefficients of the quintic that drives every singular value close to one in five steps.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with singular values of about one; same shape, (rows, columns)."""
    a, b, c = QUINTIC
    wide: Tensor = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x: Tensor = wide / (wide.norm() + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Momentum SGD with orthogonalised updates; takes matrices only."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update; ``closure`` is not supported."""
        del closure
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(param)
                average: Tensor = state["momentum"]
                average.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalise(param.grad.lerp(average, group["momentum"]))
                # Tall matrices get larger updates, so that one rate fits every shape.
                scale = max(1.0, param.shape[0] / param.shape[1]) ** 0.5
                param.add_(update, alpha=-group["lr"] * scale)
