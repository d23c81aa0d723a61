"""Runs one scheduled step on the device: tensors in, one token for each caught-up sequence out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from backend.executor.input_batch import InputBatch, InputBatchBuilder
from backend.executor.kv_cache import KVCache
from backend.executor.prompt_logprobs import PromptLogprobs, SpanLogprobs, score
from backend.executor.sampled import SampledToken, SampledTokens
from backend.executor.sampler import Sampler
from backend.models.attention import PagedAttention
from backend.models.registry import Model
from backend.scheduler.block_pool import PADDING_BLOCK
from backend.scheduler.request import SamplingParams
from backend.scheduler.sequence import ScheduledSequence, Sequence, Step


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that was launched: whose next tokens it brings, and those tokens."""

    sequences: tuple[Sequence, ...]
    sampled: SampledTokens
    scored: tuple[SpanLogprobs, ...] = ()


class Runner(Protocol):
    """Runs steps; used by the engine loop's thread alone."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def launch(self, step: Step) -> InFlight:
        """Compute the step's tokens and choose the next of each sequence that samples.

        A token that the host does not know yet was chosen by the step launched before this one.
        """
        ...

    def collect(self, in_flight: InFlight) -> list[tuple[Sequence, SampledToken | None]]:
        """Return the chosen tokens; None: the model's output for this sequence is not finite."""
        ...

    def warm_up(self) -> None:
        """Run a step in the padding block: libraries start their threads, errors show now."""
        ...

    def discard(self, blocks: Iterable[int]) -> None:
        """Erase blocks whose content is not finite, so that their next owner is not infected."""
        ...


class ModelRunner:
    """``Runner`` in plain torch, on any device; owns the model and its KV cache."""

    def __init__(self, model: Model, cache: KVCache, inputs: InputBatchBuilder) -> None:
        """``cache`` and ``inputs`` are shaped for ``model``."""
        self._model = model
        self._cache = cache
        self._inputs = inputs
        self._sampler = Sampler()
        self._prompt_logprobs = PromptLogprobs()
        self._last: InFlight | None = None

    @property
    def device(self) -> torch.device:
        """See Runner."""
        return self._cache.layers[0].device

    @torch.inference_mode()
    def launch(self, step: Step) -> InFlight:
        """See Runner."""
        batch = self._inputs.build(step)
        if batch.unseen:
            self._fill_in(batch)
        attention = PagedAttention(batch.plan, self._cache.layers)
        hidden = self._model.forward(batch.tokens, batch.positions, attention, batch.logit_rows)
        scored: tuple[SpanLogprobs, ...] = ()
        if batch.scored:
            num_sampling = len(batch.sampling)
            scored = score(batch.scored, hidden[num_sampling:], self._model.logits)
            hidden = hidden[:num_sampling]
        sampled = self._sampler.sample(self._model.logits(hidden), batch.sampling)
        sequences = tuple(scheduled.sequence for scheduled in batch.sampling)
        self._last = InFlight(sequences, sampled, scored)
        return self._last

    def _fill_in(self, batch: InputBatch) -> None:
        """Take tokens from the step before, where they lie on the device."""
        if self._last is None:
            raise RuntimeError("the first step has no step before it")
        place = {sequence: row for row, sequence in enumerate(self._last.sequences)}
        sources = [place[sequence] for sequence in batch.unseen]
        chosen = self._last.sampled.tokens
        rows = torch.tensor([list(batch.unseen.values()), sources], device=chosen.device)
        batch.tokens.index_copy_(0, rows[0], chosen.index_select(0, rows[1]))

    def collect(self, in_flight: InFlight) -> list[tuple[Sequence, SampledToken | None]]:
        """See Runner."""
        tokens = in_flight.sampled.fetch()
        self._prompt_logprobs.add(in_flight.scored)
        return list(
            zip(
                in_flight.sequences,
                map(self._prompt_logprobs.complete, in_flight.sequences, tokens),
                strict=True,
            )
        )

    def warm_up(self) -> None:
        """See Runner."""
        warm = Sequence(0, [0, 0], max_length=2, sampling=SamplingParams(temperature=0.0))
        warm.block_table = [PADDING_BLOCK]
        step = (ScheduledSequence(warm, 0, 2, samples=True),)
        self.collect(self.launch(step))
        self.discard([PADDING_BLOCK])

    @torch.inference_mode()
    def discard(self, blocks: Iterable[int]) -> None:
        """See Runner."""
        self._cache.clear(blocks)
