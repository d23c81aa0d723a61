"""Runs steps on a CUDA device through the kernels; the tokens a step chose stay there.

``launch`` never waits for the device, ``collect`` does. A step may be launched before the one
before it was collected: its unseen tokens are copied on the device from where that one chose them.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend.executor.cuda_attention import KernelAttention
from backend.executor.cuda_batch import BatchLimits, KernelBatch, KernelBatchBuilder
from backend.executor.cuda_graphs import DecodeGraphs, graph_sizes, size_for
from backend.executor.cuda_prefill import Prefill
from backend.executor.cuda_sampling import draw_on_device
from backend.executor.kv_cache import KVCache
from backend.executor.model_runner import InFlight
from backend.executor.prompt_logprobs import PromptLogprobs, SpanLogprobs, score
from backend.executor.sampled import SampledToken
from backend.executor.sampler import Sampler
from backend.kernels.decode_attention import SplitWorkspace
from backend.kernels.operations import KernelOperations
from backend.models.config import ModelShape
from backend.models.registry import Model
from backend.scheduler.block_pool import BLOCK_SIZE, PADDING_BLOCK
from backend.scheduler.request import SamplingParams
from backend.scheduler.sequence import ScheduledSequence, Sequence, Step

logger = logging.getLogger(__name__)

# Uses every part of the sampler: what it compiles or allocates shows before the first request.
_COSTLY = SamplingParams(top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logprobs=20)


@dataclass(frozen=True, slots=True)
class KernelModel:
    """A model, its shape, and the ``operations`` that it was made with."""

    model: Model
    shape: ModelShape
    operations: KernelOperations


class CudaModelRunner:
    """``Runner`` for CUDA; on CPU tensors, in Triton's interpreter, for tests."""

    def __init__(
        self,
        model: KernelModel,
        cache: KVCache,
        limits: BatchLimits,
        prefill: Prefill,
        *,
        graphs: bool,
        pads: bool = True,
    ) -> None:
        """``graphs`` captures decoding; ``pads`` fills decode batches up to the graphs' sizes."""
        self._model = model.model
        self._operations = model.operations
        self._cache = cache
        self._limits = limits
        self._prefill = prefill
        shape = model.shape
        self._inputs = KernelBatchBuilder(
            limits, num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads
        )
        device = model.model.device
        self._inputs.place(device)
        sizes = graph_sizes(limits.max_num_seqs)
        rows = max(
            size * shape.num_heads * self._inputs.splits(size, limits.max_model_len)
            for size in range(1, sizes[-1] + 1)
        )
        self._workspace = SplitWorkspace.allocate(rows, shape.head_dim, device)
        self._sizes = sizes if pads or graphs else ()
        self._graphs = DecodeGraphs() if graphs else None
        self._sampler = Sampler(draw_on_device)
        self._prompt_logprobs = PromptLogprobs()
        self._last: InFlight | None = None

    @property
    def device(self) -> torch.device:
        """See Runner."""
        return self._model.device

    @torch.inference_mode()
    def launch(self, step: Step) -> InFlight:
        """See Runner."""
        chosen = {} if self._last is None else _rows_of(self._last)
        size = size_for(len(step), self._sizes) if _only_decodes(step) else None
        batch = self._inputs.build(step, chosen, size)
        if batch.unseen is not None and self._last is not None:
            targets, sources = batch.unseen
            tokens = self._last.sampled.tokens.index_select(0, sources).int()
            batch.tokens.index_copy_(0, targets.long(), tokens)
        scored: tuple[SpanLogprobs, ...] = ()
        if size is not None and self._graphs is not None and size in self._graphs:
            hidden = self._graphs.replay(size)
        else:
            hidden = self._forward(batch)
        num_sampling = len(batch.sampling)
        if batch.scored:
            scored = score(batch.scored, hidden[num_sampling:], self._model.logits)
        logits = self._model.logits(hidden[:num_sampling])
        sampled = self._sampler.sample(logits, batch.sampling)
        sequences = tuple(each.sequence for each in batch.sampling)
        self._last = InFlight(sequences, sampled, scored)
        return self._last

    def collect(self, in_flight: InFlight) -> list[tuple[Sequence, SampledToken | None]]:
        """See Runner; waits for the device."""
        tokens = in_flight.sampled.fetch()
        self._prompt_logprobs.add(in_flight.scored)
        complete = self._prompt_logprobs.complete
        return [
            (sequence, complete(sequence, token))
            for sequence, token in zip(in_flight.sequences, tokens, strict=True)
        ]

    def warm_up(self) -> None:
        """Run steps in the padding block: kernels are compiled, graphs captured, errors show."""
        for num_tokens in (min(2 * BLOCK_SIZE, self._limits.max_model_len), 1):
            self.collect(self.launch((_nobody(num_tokens),)))
        self._compile_splits()
        if self._graphs is not None:
            # The largest first: the others then find room in its memory.
            for size in reversed(self._sizes):
                try:
                    self._capture(size)
                except RuntimeError as error:
                    # Memory mostly, which a capture may tell in other words. Steps run without;
                    # where the device is lost, the next of them says so.
                    logger.warning("no graph of %d sequences and less: %s", size, error)
                    break
        self.discard([PADDING_BLOCK])

    @torch.inference_mode()
    def _compile_splits(self) -> None:
        """Run decode attention in each number of splits that a step may ask for."""
        batch = self._inputs.build((_nobody(1),), {})
        splits = self._inputs.splits(1, self._limits.max_model_len)
        while splits:
            self._forward(replace(batch, plan=replace(batch.plan, splits=splits)))
            splits //= 2

    @torch.inference_mode()
    def _capture(self, size: int) -> None:
        if self._graphs is not None:
            batch = self._inputs.build((_nobody(1),) * size, {}, size)
            self._graphs.capture(size, lambda: self._forward(batch))

    @torch.inference_mode()
    def discard(self, blocks: Iterable[int]) -> None:
        """See Runner."""
        self._cache.clear(blocks)

    @torch.inference_mode()
    def run_worst_case(self) -> None:
        """Take the steps that need most memory, for nobody, in the padding block alone."""
        limits = self._limits
        count = min(limits.max_num_seqs, max(limits.max_tokens_per_step // 2, 1))
        longest = max(min(limits.max_tokens_per_step // count, limits.max_model_len), 2)
        self.collect(self.launch(tuple(_nobody(longest) for _ in range(count))))
        self.collect(self.launch(tuple(_nobody(1) for _ in range(limits.max_num_seqs))))
        self.discard([PADDING_BLOCK])

    def _forward(self, batch: KernelBatch) -> Tensor:
        attention = KernelAttention(
            batch.plan, self._cache.layers, self._operations, self._workspace, self._prefill
        )
        return self._model.forward(batch.tokens, batch.positions, attention, batch.logit_rows)


def _rows_of(in_flight: InFlight) -> dict[Sequence, int]:
    return {sequence: row for row, sequence in enumerate(in_flight.sequences)}


def _only_decodes(step: Step) -> bool:
    return all(each.num_tokens == 1 and each.samples for each in step)


def _nobody(num_tokens: int) -> ScheduledSequence:
    """``num_tokens`` tokens whose KV all goes to the padding block."""
    sequence = Sequence(0, [0] * num_tokens, num_tokens + 1, sampling=_COSTLY)
    sequence.block_table = [PADDING_BLOCK] * (num_tokens // BLOCK_SIZE + 1)
    return ScheduledSequence(sequence, 0, num_tokens, samples=True)
