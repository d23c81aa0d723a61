"""Runs one scheduled step on the device: tensors in, one token for each caught-up sequence out."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf

import torch

from backend.core.block_pool import PADDING_BLOCK
from backend.core.scheduler import ScheduledSequence
from backend.core.sequence import Sequence
from backend.core.types import SamplingParams
from backend.models.decoder import Decoder
from backend.runtime.input_batch import InputBatchBuilder
from backend.runtime.kv_cache import KVCache
from backend.runtime.sampler import SequenceSampler, sample


class ModelRunner:
    """Owns the model and its KV cache; used by the engine loop's thread alone."""

    def __init__(self, model: Decoder, cache: KVCache, inputs: InputBatchBuilder) -> None:
        """``cache`` and ``inputs`` are shaped for ``model``."""
        self._model = model
        self._cache = cache
        self._inputs = inputs

    @torch.inference_mode()
    def run(
        self,
        step: SequenceOf[ScheduledSequence],
        sampler_of: Callable[[Sequence], SequenceSampler],
    ) -> list[tuple[Sequence, int | None]]:
        """Compute the step's tokens, then choose a token for each sequence that caught up.

        None instead of a token: the model's output for this sequence is not finite.
        """
        batch = self._inputs.build(step)
        logits = self._model.forward(
            batch.tokens, batch.positions, self._cache.layers, batch.plan, batch.logit_rows
        )
        tokens = sample(logits, [sampler_of(sequence) for sequence in batch.sampling])
        return list(zip(batch.sampling, tokens, strict=True))

    def warm_up(self) -> None:
        """Run one step in the padding block: libraries start their threads, errors show now."""
        warm = Sequence(0, [0, 0], max_length=2)
        warm.block_table = [PADDING_BLOCK]
        sampler = SequenceSampler(SamplingParams(temperature=0.0), 0)
        self.run((ScheduledSequence(warm, 2),), lambda _: sampler)
        self.discard([PADDING_BLOCK])

    @torch.inference_mode()
    def discard(self, blocks: Iterable[int]) -> None:
        """Erase blocks whose content is not finite, so that their next owner is not infected."""
        self._cache.clear(blocks)
