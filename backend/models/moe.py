"""A mixture of experts in place of an MLP: each token goes through the few that the router picks.

Tokens are sorted by expert, so that each expert that was picked is one product over all of its
tokens; nothing here is done token by token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.layers import Linear, Operations

# What torch's grouped product asks of the rows' size, in bytes.
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
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

    @property
    def num_bytes(self) -> int:
        """What the weights take in memory."""
        stacks = (self.gate_up, self.down)
        return self.router.nbytes + sum(
            each.nbytes if isinstance(each, Tensor) else sum(linear.num_bytes for linear in each)
            for each in stacks
        )

    @property
    def has_static_steps(self) -> bool:
        """Whether the host learns nothing within a step: groups are counted on the device."""
        return self.router.is_cuda and _can_group(self.router, self.gate_up, self.down)

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
        if self.has_static_steps:
            computed = self._grouped(pairs, ends, operations)
        else:
            computed = self._one_by_one(pairs, ends.tolist(), operations)
        weighted = computed * shares.flatten().index_select(0, order).unsqueeze(1)
        slots = torch.empty_like(weighted).index_copy_(0, order, weighted)
        return slots.view(len(rows), self.top_k, rows.shape[1]).sum(1).to(rows.dtype)

    def _grouped(self, pairs: Tensor, ends: Tensor, operations: Operations) -> Tensor:
        """All experts in two launches, the sizes of the groups staying on the device."""
        gate_up, down = self.gate_up, self.down
        if not (isinstance(gate_up, Tensor) and isinstance(down, Tensor)):
            raise TypeError("a grouped product takes all experts' weights as one tensor")
        inner = functional.grouped_mm(pairs, gate_up.transpose(1, 2), offs=ends)
        gated = operations.gated(inner)
        return functional.grouped_mm(gated, down.transpose(1, 2), offs=ends)

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


def _can_group(router: Tensor, *weights: Tensor | tuple[Linear, ...]) -> bool:
    """Whether PyTorch's grouped product takes these weights."""
    return router.dtype is torch.bfloat16 and all(
        isinstance(each, Tensor) and each.shape[-1] * each.itemsize % _ALIGNMENT == 0
        for each in weights
    )
