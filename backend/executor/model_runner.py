"""Runs steps on a device: a step's value in, the next tokens of each row that samples out.

``launch`` and ``sample`` never wait for the device, ``collect`` does. A step may be launched before
the one before it was collected: the tokens that one chose stay on the device.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from backend.executor.attention.backend import AttentionBackend
from backend.executor.cuda_graphs import PIECE_SIZES, PieceGraphs, Recorder, graph_sizes, size_for
from backend.executor.input_batch import (
    BatchLimits,
    InputBatch,
    InputBatchBuilder,
    SampledRow,
    Staging,
)
from backend.executor.kv_cache import KVCache
from backend.executor.sampled import PromptLogprobs, Sampled, SampledTokens, SpanLogprobs, score
from backend.executor.sampler.sampler import Draw, GrammarMask, Sampler
from backend.executor.sleep import Asleep, put_to_sleep
from backend.executor.states import StatePool
from backend.executor.transfer import BlockTransfer
from backend.models.decoder import Decoder
from backend.models.lora import AdaptedDecoder
from backend.models.model import Model
from backend.scheduler.batch import AppendedBlocks, NewSequence, Row, StepBatch
from backend.scheduler.block_pool import BLOCK_SIZE, PADDING_BLOCK, blocks_for
from backend.scheduler.drafts import MOST_DRAFTS, MOST_ROWS
from backend.scheduler.request import SamplingParams

logger = logging.getLogger(__name__)

_GREEDY = SamplingParams(temperature=0.0)
# Products with quantised weights and products of experts are other kernels for more tokens.
_TOKENS = (12, 32, 200)
_SCORED = SamplingParams(temperature=0.0, prompt_logprobs=0)
_ORDINARY = SamplingParams(top_k=20, top_p=0.9, min_p=0.01)
# Uses every part of the sampler: what it allocates shows before the first request.
_COSTLY = SamplingParams(top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logprobs=20)


@dataclass(frozen=True, slots=True)
class Launched:
    """A step whose hidden states are being computed."""

    batch: InputBatch
    hidden: Tensor
    scored: tuple[SpanLogprobs, ...]


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step whose tokens are being chosen: whose they are, and what is on its way."""

    rows: tuple[SampledRow, ...]
    sampled: SampledTokens
    scored: tuple[SpanLogprobs, ...]
    is_plain: bool


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """What a runner runs: a model, and how it attends and draws.

    ``adapted`` computes the steps that have rows of LoRA adapters.
    """

    model: Model
    vocab_size: int
    cache: KVCache
    attention: AttentionBackend
    draw: Draw | None = None
    adapted: AdaptedDecoder | None = None
    transfer: BlockTransfer | None = None
    states: StatePool | None = None
    """Where ``attention`` has recurrent states too."""
    num_ranks: int = 1
    """So many compute the model together; all capture the same graphs or none."""


@dataclass(slots=True)
class _Path:
    """A model, and what of it was captured: steps of single tokens by size, and pieces."""

    model: Model
    graphs: dict[int, tuple[Callable[[], None], Tensor]]
    pieces: PieceGraphs | None


class ModelRunner:
    """Owns the model, its KV cache and what is known of each slot; used by one thread."""

    def __init__(
        self,
        parts: RunnerParts,
        limits: BatchLimits,
        *,
        recorder: Recorder | None = None,
        pads: bool = False,
    ) -> None:
        """Capture graphs with ``recorder``; ``pads`` fills up decode batches to their sizes."""
        self._model = parts.model
        self.device = parts.model.device
        self._cache = parts.cache
        self.transfer = parts.transfer
        """What moves blocks beyond the pool."""
        self._attention = parts.attention
        self._states = parts.states
        self._limits = limits
        self._num_ranks = parts.num_ranks
        self.vocab_size = parts.vocab_size
        self._inputs = InputBatchBuilder(limits, parts.attention, self.device)
        self._sampler = Sampler(limits.num_slots + 1, parts.vocab_size, self.device, parts.draw)
        self._sizes = graph_sizes(limits.max_num_seqs) if pads or recorder else ()
        self._recorder = recorder
        self._plain = self._path(parts.model)
        self._adapted: _Path | None = None
        if parts.adapted is not None:
            self._adapted = self._path(parts.adapted)
            self._adapter_rows = parts.adapted.rows
            most = max(limits.max_tokens_per_step, limits.max_num_seqs)
            self._staged_adapters = Staging(most, self.device)
        self._prompt_logprobs = PromptLogprobs()
        self._asleep = Asleep()

    def _path(self, model: Model) -> _Path:
        """Return ``model`` with buffers for the graphs that ``warm_up`` captures."""
        sizes = [size for size in PIECE_SIZES if size <= self._limits.max_tokens_per_step]
        if self._recorder is None or not isinstance(model, Decoder) or not sizes:
            return _Path(model, {}, None)
        with torch.inference_mode():
            return _Path(model, {}, PieceGraphs(model, self._recorder, sizes))

    @torch.inference_mode()
    def launch(self, step: StepBatch) -> Launched:
        """Compute the hidden states of ``step``."""
        if step.new:
            self._sampler.start(step.new)
            for new in step.new:
                self._prompt_logprobs.start(new.slot)
        if self._states is not None:
            self._states.begin(step)
        size = None
        if self._sizes and all(row.num_tokens == 1 and row.samples for row in step.rows):
            size = size_for(len(step.rows), self._sizes)
        try:
            batch = self._inputs.build(step, size)
            hidden = self._hidden(batch, size)
        except Exception:
            # It may come again, with another step in between.
            self._inputs.forget(step)
            raise
        num_sampling = len(batch.slots)
        scored: tuple[SpanLogprobs, ...] = ()
        if batch.scored:
            scored = score(batch.scored, hidden[num_sampling:], self._model.logits)
        return Launched(batch, hidden[:num_sampling], scored)

    @torch.inference_mode()
    def sample(self, launched: Launched, mask: GrammarMask | None = None) -> InFlight:
        """Choose the next tokens; ``mask.rows`` are places in the step's rows."""
        batch = launched.batch
        if mask is not None:
            first = {row.place: row.first for row in batch.sampled}
            mask = GrammarMask(tuple(first[place] for place in mask.rows), mask.bits)
        logits = self._model.logits(launched.hidden)
        sampled = self._sampler.sample(logits, batch.slots, batch.numbers, mask)
        if len(batch.slots):
            try:
                self._inputs.keep(batch.slots, sampled.tokens)
                self._sampler.count(batch.slots, sampled.tokens)
            except Exception as error:
                # From here on the step cannot come again, whatever was short.
                raise RuntimeError("a step failed after its tokens were noted") from error
        return InFlight(batch.sampled, sampled, launched.scored, batch.is_plain)

    def collect(self, in_flight: InFlight) -> list[Sampled | None]:
        """Wait, and return the tokens of each row that samples, in the step's order.

        None: the model's output for this sequence is not finite.
        """
        tokens, finite, logprobs = in_flight.sampled.fetch()
        self._prompt_logprobs.add(in_flight.scored)
        if in_flight.is_plain and not (logprobs or self._prompt_logprobs) and all(finite):
            return [Sampled((token,)) for token in tokens]
        results: list[tuple[int, Sampled | None]] = []
        for row in in_flight.rows:
            last = row.first + _num_accepted(row, tokens)
            chosen = range(row.first, last + 1)
            # What a refused draft wrote may be read masked, and must be finite for that.
            if not all(finite[row.first : row.first + 1 + len(row.drafts)]):
                results.append((row.place, None))
                continue
            if row.drafts:
                self._inputs.set_last_token(row.slot, tokens[last])
            found = tuple(logprobs[at] for at in chosen if at in logprobs)
            prompt = self._prompt_logprobs.take(row.slot)
            results.append((row.place, Sampled(tuple(tokens[at] for at in chosen), found, prompt)))
        return [sampled for _, sampled in sorted(results, key=lambda each: each[0])]

    def warm_up(self) -> None:
        """Run steps in the padding block: kernels are compiled, graphs captured, errors show.

        The thread that calls it takes all steps.
        """
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # each thread has one of its own
        # Each token of them has logits, as drafts have.
        for tokens in _TOKENS:
            for adapter in self._numbers:
                self._run(_dummy_step(self._prompts(tokens), _SCORED, adapter))
        # The kernel that draws is compiled for the model's logits, and for adjusted ones.
        for sampling in (_GREEDY, _ORDINARY, _COSTLY):
            self._run(_dummy_step([1], sampling), masked=sampling is _COSTLY)
        # Other kernels are compiled anew for more rows.
        some, most = 2 * BLOCK_SIZE, self._limits.max_num_seqs
        for adapter in self._numbers if self._sizes else ():
            prompts = self._prompts(self._limits.max_tokens_per_step)
            self._run(_dummy_step(prompts, _GREEDY, adapter))
        while self._sizes and some < 2 * most:
            self._run(_dummy_step([1] * min(some, most), _GREEDY))
            some *= 2
        if self._recorder is not None:
            self._capture_all(self._recorder)
        self.discard([PADDING_BLOCK])

    def sleep(self) -> None:
        """Give back what the KV pool and the graphs take, and on CUDA what the weights take."""
        paths = self._paths
        for path in paths:
            path.graphs.clear()
            path.pieces = None
        if self._recorder is not None:
            self._recorder.forget()
        self._attention.release()
        states = () if self._states is None else self._states.states
        self._asleep = put_to_sleep([path.model for path in paths], self._cache, states)

    def wake(self) -> None:
        """Take the memory again, with a KV pool of zeros, and warm up."""
        self._asleep.wake()
        for path in self._paths:
            path.pieces = self._path(path.model).pieces
        self.warm_up()

    @property
    def _paths(self) -> list[_Path]:
        return [self._plain, *([] if self._adapted is None else [self._adapted])]

    def _prompts(self, tokens: int) -> list[int]:
        """Return the lengths of prompts of about ``tokens`` tokens, as far as the limits allow."""
        limits = self._limits
        each = min(tokens, limits.max_tokens_per_step, limits.max_model_len - 1)
        count = min(-(-tokens // each), limits.max_num_seqs, limits.max_tokens_per_step // each)
        return [each] * count

    def run_worst_case(self) -> None:
        """Take the steps that need most memory, for nobody, in the padding block alone."""
        limits = self._limits
        count = min(limits.max_num_seqs, max(limits.max_tokens_per_step // 2, 1))
        longest = max(min(limits.max_tokens_per_step // count, limits.max_model_len), 2)
        adapter = self._numbers[-1]
        self._run(_dummy_step([longest] * count, _COSTLY, adapter))
        self._run(_dummy_step([1] * limits.max_num_seqs, _COSTLY, adapter))
        # Drafts have logits of their own.
        width = 1 + MOST_DRAFTS
        drafting = min(limits.max_num_seqs, MOST_ROWS, limits.max_tokens_per_step // width)
        if drafting and width < limits.max_model_len:
            step = _dummy_step([width] * drafting, _ORDINARY, adapter)
            rows = tuple(row._replace(drafted=(0,) * width) for row in step.rows)
            self._run(replace(step, rows=rows))
        self.discard([PADDING_BLOCK])

    @torch.inference_mode()
    def discard(self, blocks: Iterable[int]) -> None:
        """Erase blocks whose content is not finite, so that their next owner is not infected."""
        self._cache.clear(blocks)

    @torch.inference_mode()
    def read_blocks(self, blocks: list[int]) -> Tensor:
        """Return the content of ``blocks``, uint8 [blocks, block bytes] on the host; waits."""
        numbers = torch.tensor(blocks, device=self.device)
        rows = torch.empty(
            len(blocks), self._cache.bytes_of_block, dtype=torch.uint8, device=self.device
        )
        self._cache.copy_out(numbers, rows)
        return rows.cpu()

    @property
    def block_bytes(self) -> int:
        """What a block takes, over all layers."""
        return self._cache.bytes_of_block

    @property
    def _numbers(self) -> tuple[int, ...]:
        """The base, and an adapter where there are some."""
        return (0,) if self._adapted is None else (0, 1)

    def _path_of(self, batch: InputBatch) -> _Path:
        """Return what computes ``batch``, told the rows' adapters."""
        if batch.adapters is None or self._adapted is None:
            return self._plain
        [sent] = self._staged_adapters.send([batch.adapters.numbers])
        self._adapter_rows.start(batch.adapters, sent)
        return self._adapted

    def _hidden(self, batch: InputBatch, size: int | None) -> Tensor:
        path = self._path_of(batch)
        if size is not None and size in path.graphs:
            replay, output = path.graphs[size]
            replay()
            return output  # which the next replay overwrites
        if path.pieces is not None and size is None:
            piece = path.pieces.size_for(len(batch.tokens))
            if piece is not None:
                return path.pieces.forward(
                    piece, batch.tokens, batch.positions, self._attention, batch.logit_rows
                )
        return self._forward(path.model, batch)

    def _forward(self, model: Model, batch: InputBatch) -> Tensor:
        return model.forward(batch.tokens, batch.positions, self._attention, batch.logit_rows)

    def _run(self, step: StepBatch, *, masked: bool = False) -> None:
        mask = None
        if masked:
            words = -(-self.vocab_size // 32)
            mask = GrammarMask((0,), torch.full((1, words), -1, dtype=torch.int32))
        self.collect(self.sample(self.launch(step), mask))

    def _capture_all(self, recorder: Recorder) -> None:
        # The largest first: the others then find room in its memory.
        captures: list[tuple[str, Callable[[], None]]] = []
        for adapter in self._numbers:
            captures += [
                (f"{size} sequences", partial(self._capture, recorder, size, adapter))
                for size in reversed(self._sizes)
            ]
        for path in (self._plain, self._adapted):
            if path is not None and (pieces := path.pieces) is not None:
                captures += [
                    (f"{size} tokens", partial(pieces.capture, size))
                    for size in reversed(pieces.sizes)
                ]
        for what, capture in captures:
            try:
                with torch.inference_mode():
                    capture()
            except RuntimeError as error:
                if self._num_ranks > 1:
                    raise  # the others go on capturing, and would wait for this one
                # Memory mostly, which a capture may tell in other words. Steps run without; where
                # the device is lost, the next of them says so.
                logger.warning("no graph of %s and less: %s", what, error)
                return

    def _capture(self, recorder: Recorder, size: int, adapter: int) -> None:
        batch = self._inputs.build(_dummy_step([1] * size, _GREEDY, adapter), size)
        path = self._path_of(batch)
        path.graphs[size] = recorder.record(lambda: self._forward(path.model, batch))


def _num_accepted(row: SampledRow, tokens: Sequence[int]) -> int:
    """Return how many drafts are what was chosen in their places."""
    for at, draft in enumerate(row.drafts):
        if tokens[row.first + at] != draft:
            return at
    return len(row.drafts)


def _dummy_step(counts: Sequence[int], sampling: SamplingParams, adapter: int = 0) -> StepBatch:
    """Return a step of new sequences whose KV all goes to the padding block."""
    return StepBatch(
        tuple(
            NewSequence(slot, (0,) * count, count, sampling, 0, frozenset(), adapter)
            for slot, count in enumerate(counts)
        ),
        tuple(
            AppendedBlocks(slot, 0, (PADDING_BLOCK,) * blocks_for(count))
            for slot, count in enumerate(counts)
        ),
        tuple(Row(slot, 0, count, samples=True) for slot, count in enumerate(counts)),
    )
