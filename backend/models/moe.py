"""A mixture of experts in place of an MLP: each token goes through the few that the router picks.

Tokens are sorted by expert, so that each expert that was picked is one product over all of its
tokens; nothing here is done token by token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backend.kernels.available import unavailable_reason
from backend.models.layers import Linear, Operations
from backend.models.parallel import ALONE, Communicator

# What torch's grouped product asks of the rows' size, in bytes, and of the device. On others it
# copies the groups' sizes to the host.
_ALIGNMENT = 16
_CAPABILITIES = {(9, 0), (10, 0)}

GroupedProduct = Callable[[Tensor, Any, Tensor], Tensor]
"""Pairs sorted by expert, times all experts' weights, given where each expert's pairs end."""


@dataclass(slots=True)
class Experts:
    """``router`` is [experts, hidden]; each expert's ``gate_up`` [2 * inner, hidden] and ``down``.

    All experts' weights are one tensor, or, if they are quantised, a ``Linear`` each.
    ``normalised``: the weights of a token's ``top_k`` experts are made to sum to 1.
    """

    router: Tensor
    gate_up: Tensor | tuple[Linear, ...]
    down: Tensor | tuple[Linear, ...]
    top_k: int
    normalised: bool
    ranks: Communicator = ALONE
    """Each has some columns of every expert's inner size, and the whole router."""
    product: GroupedProduct | None = field(init=False)
    """None: experts are computed one by one, and the host waits for the sizes of their groups."""

    def __post_init__(self) -> None:
        """Choose the product that is best on the weights' device."""
        self.product = _grouped_product(self.gate_up, self.down)

    def compute_in_torch(self) -> None:
        """Do without the kernel from now on, for devices on which it errs."""
        if self.product is not multiply_in_torch:
            self.product = None

    @property
    def num_bytes(self) -> int:
        """What the weights take in memory."""
        stacks = (self.gate_up, self.down)
        return self.router.nbytes + sum(
            each.nbytes if isinstance(each, Tensor) else sum(linear.num_bytes for linear in each)
            for each in stacks
        )

    def __call__(self, rows: Tensor, operations: Operations) -> Tensor:
        """Map [tokens, hidden] to the same shape."""
        scores = functional.linear(rows, self.router)
        shares = torch.softmax(scores, dim=-1, dtype=torch.float32)
        shares, picked = torch.topk(shares, self.top_k, dim=-1)
        if self.normalised:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        picked, order = picked.flatten().sort(stable=True)
        # Slot k of token t is pair t * top_k + k; sorted pairs go through their experts.
        pairs = rows.index_select(0, order // self.top_k)
        every = torch.arange(len(self.router), device=rows.device)
        ends = torch.searchsorted(picked, every, right=True, out_int32=True)
        if self.product is None:
            computed = self._one_by_one(pairs, ends.tolist(), operations)
        else:
            gated = operations.gated(self.product(pairs, self.gate_up, ends))
            computed = self.product(gated, self.down, ends)
        weighted = computed * shares.flatten().index_select(0, order).unsqueeze(1)
        slots = torch.empty_like(weighted).index_copy_(0, order, weighted)
        mixed = slots.view(len(rows), self.top_k, rows.shape[1]).sum(1).to(rows.dtype)
        return self.ranks.all_reduce(mixed)

    def _one_by_one(self, pairs: Tensor, ends: list[int], operations: Operations) -> Tensor:
        """Each picked expert in turn: on CPU no slower than one call, in any dtype and shape."""
        computed = torch.empty_like(pairs)
        start = 0
        for expert, stop in enumerate(ends):
            if stop > start:
                inner = _product(pairs[start:stop], self.gate_up[expert])
                computed[start:stop] = _product(operations.gated(inner), self.down[expert])
                start = stop
        return computed


def _product(rows: Tensor, weight: Tensor | Linear) -> Tensor:
    return functional.linear(rows, weight) if isinstance(weight, Tensor) else weight(rows)


def multiply_in_torch(pairs: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return what ``kernels.grouped_matmul`` does."""
    return functional.grouped_mm(pairs, weights.transpose(1, 2), offs=ends)


def _grouped_product(*weights: Tensor | tuple[Linear, ...]) -> GroupedProduct | None:
    """Return PyTorch's product where it leaves the groups' sizes on the device, else our kernel.

    None: experts are computed one by one, as on CPU, in float32, and in all quantised layouts.
    """
    in_torch = True
    for each in weights:
        if not (isinstance(each, Tensor) and each.is_cuda and each.itemsize == 2):
            return None
        fits = each.dtype is torch.bfloat16 and each.shape[-1] * each.itemsize % _ALIGNMENT == 0
        in_torch &= fits and torch.cuda.get_device_capability(each.device) in _CAPABILITIES
    if in_torch:
        return multiply_in_torch
    if unavailable_reason() is not None:
        return None
    # Triton is not everywhere.
    from backend.kernels.grouped_matmul import grouped_matmul  # noqa: PLC0415

    return grouped_matmul
