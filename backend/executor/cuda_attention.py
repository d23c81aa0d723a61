"""Attention of one step through the kernels, in place of ``models.attention.PagedAttention``.

The same code runs on CPU tensors in Triton's interpreter, so all of it but the speed is tested
without a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.executor.cuda_prefill import Prefill, PrefillSpans
from backend.kernels.decode_attention import BlockTables, SplitWorkspace, decode_attention
from backend.kernels.kv_write import write_kv
from backend.kernels.operations import KernelOperations, Turn
from backend.kernels.rotary import rotate_and_write


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """Whose token is whose: the first ``num_decodes`` are single ones, spans make up the rest.

    ``slots`` says where each token's KV goes, ``lengths`` how many keys each single token sees.
    """

    slots: Tensor
    tables: BlockTables
    lengths: Tensor
    num_decodes: int
    splits: int
    spans: PrefillSpans | None


@dataclass(frozen=True, slots=True)
class KernelAttention:
    """``Attention`` of one step."""

    plan: KernelPlan
    caches: Sequence[Tensor]
    operations: KernelOperations
    workspace: SplitWorkspace
    prefill: Prefill

    def __call__(
        self, layer: int, queries: Tensor, keys_values: Tensor, window: int | None
    ) -> Tensor:
        """See Attention."""
        plan, cache = self.plan, self.caches[layer]
        turn = self.operations.take_turn()
        if turn is None:
            # A model that rotates by itself, and lays out its tensors as it likes.
            queries, keys_values = queries.contiguous(), keys_values.contiguous()
            write_kv(keys_values, cache, plan.slots)
        else:
            self._turn_and_write(turn, queries, keys_values.shape[1], cache)
        tokens, heads, head_dim = queries.shape
        output = torch.empty((tokens, heads, head_dim), device=queries.device, dtype=queries.dtype)
        if plan.num_decodes:
            decode_attention(
                queries[: plan.num_decodes],
                cache,
                plan.tables,
                plan.lengths,
                splits=plan.splits,
                window=window,
                workspace=self.workspace,
                output=output[: plan.num_decodes],
            )
        if plan.spans is not None:
            self.prefill.attend(
                queries, keys_values, cache, plan.spans, window=window, output=output
            )
        return output.view(tokens, heads * head_dim)

    def _turn_and_write(self, turn: Turn, queries: Tensor, num_kv_rows: int, cache: Tensor) -> None:
        tokens, heads, head_dim = queries.shape
        together = (tokens, heads + num_kv_rows, head_dim)
        rotate_and_write(
            turn.heads.as_strided(together, queries.stride()),
            turn.rotations,
            self.plan.slots,
            cache,
            head_weights=None if turn.head_norm is None else turn.head_norm.weight,
            eps=0.0 if turn.head_norm is None else turn.head_norm.eps,
            keep_keys=self.prefill.reads_new_keys and self.plan.spans is not None,
        )
