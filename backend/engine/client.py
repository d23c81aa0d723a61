"""The client's half of an engine: requests out, tokens in, and text made of them.

Law: every request that was let in gets an end. A request is in the table from before its message is
sent until its generator is closed; ``close`` fails all that are in it and lets no other in.
Tokens become text in the task that reads them, never in the engine.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain, count
from time import monotonic
from typing import TypeVar

from backend.engine.messages import Abort, EngineDescription, Item, Report, Submit, ToEngine
from backend.ports import EngineError, OverloadedError, RequestRejectedError, UnavailableError
from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.cache_events import NOTHING_CACHED, EventBatch
from backend.scheduler.prefix_cache import extend_block_hashes, root_hash
from backend.scheduler.request import FinishReason, GenerationRequest, TextDelta, TokenDelta
from backend.scheduler.stats import EngineStats
from backend.scheduler.stopping import Choice
from backend.tokenizer.tokenizer import Tokenizer

_TOKENS = 32
"""So many tokens of a long answer become text at a time."""
_BLOCKS = 256
"""So many blocks of a long prompt are hashed at a time."""
_CONTEXT_TOKENS = 8
"""So many of a prompt's last tokens tell a decoder that an answer is not the text's beginning."""
_YIELD_AFTER_SECONDS = 0.002
"""After this long, other tasks of the event loop run before the rest is done."""

_NO_STATS = EngineStats()

T = TypeVar("T")


class Stream:
    """Where one request's deltas go; created and read on ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to the event loop that will read."""
        self.loop = loop
        self._items: list[Item] = []
        self._arrival = asyncio.Event()

    def put(self, item: Item) -> None:
        """Add ``item``; on the stream's loop."""
        self._items.append(item)
        self._arrival.set()

    async def receive(self) -> list[TokenDelta]:
        """Wait for deltas and return them in order, at most one for each choice.

        Raises the exception that ended the stream, once the deltas before it were returned. The
        supervisor ends the streams of an engine that hangs.
        """
        await self._arrival.wait()
        items = self._items
        if isinstance(items[0], Exception):
            raise items[0]
        ended = any(isinstance(item, Exception) for item in items)
        self._items = [item for item in items if isinstance(item, Exception)]
        if not ended:
            self._arrival.clear()
        return _merge(item for item in items if isinstance(item, TokenDelta))


def deliver(items: Iterable[tuple[Stream, Item]]) -> list[Stream]:
    """Hand ``items`` over, from any thread. Returns streams whose event loop is closed.

    Those have no reader any more, which is no fault.
    """
    of_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = defaultdict(list)
    for stream, item in items:
        of_loop[stream.loop].append((stream, item))
    deserted: list[Stream] = []
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    for loop, batch in of_loop.items():
        try:
            _put(batch) if loop is here else loop.call_soon_threadsafe(_put, batch)
        except RuntimeError:
            if not loop.is_closed():
                raise
            deserted += [stream for stream, _ in batch]
    return deserted


def _put(items: list[tuple[Stream, Item]]) -> None:
    for stream, item in items:
        stream.put(item)


def _merge(deltas: Iterable[TokenDelta]) -> list[TokenDelta]:
    of_choice: defaultdict[int, list[TokenDelta]] = defaultdict(list)
    for delta in deltas:
        of_choice[delta.index].append(delta)
    return [
        last._replace(
            tokens=tuple(chain.from_iterable(delta.tokens for delta in each)),
            logprobs=tuple(chain.from_iterable(delta.logprobs for delta in each)),
            prompt_logprobs=each[0].prompt_logprobs,
            times=each[0].times,
        )
        if (last := each[-1]) is not each[0]
        else last
        for each in of_choice.values()
    ]


@dataclass(frozen=True, slots=True)
class _Engine:
    """What there is while the client is open."""

    description: EngineDescription
    text: Tokenizer


class EngineClient:
    """Implements ``backend.ports.Generator`` in front of an engine that can be replaced."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        """``send`` hands a message to the current engine, from any thread, and never waits.

        It may raise OverloadedError for a request.
        """
        self._send = send
        self._numbers = count()
        self._lock = threading.Lock()
        self._refusal = "the engine was not started"
        self._engine: _Engine | None = None
        self._last: _Engine | None = None
        self._streams: dict[int, Stream] = {}
        self.cache_listener: Callable[[list[EventBatch]], None] = lambda _: None
        """Called with news of the prefix cache, from any thread, one at a time."""
        self.waken: Callable[[], Awaitable[None]] | None = None
        """Set while the engine sleeps and a request may wake it."""
        self._before = _NO_STATS
        self._stats = _NO_STATS

    def open(
        self,
        description: EngineDescription,
        text: Tokenizer,
        *,
        is_new: bool = True,
        failed: bool = True,
    ) -> None:
        """Let requests in: to a new engine, because the last one ``failed``, or to the same."""
        with self._lock:
            self.waken = None
            if self._last is not None and is_new:
                # Another engine counts from zero; the figures go on.
                restarts = self._stats.restarts + failed
                self._before = self._stats = replace(self._stats, restarts=restarts)
            self._engine = self._last = _Engine(description, text)

    def close(self, reason: str) -> None:
        """Let no request in, and fail those that are open; a second call changes the reason."""
        with self._lock:
            was_open, self._engine = self._engine is not None, None
            self._refusal = reason
            self._stats = replace(self._stats, running=0, waiting=0, kv_blocks_used=0)
            streams, self._streams = self._streams, {}
        if was_open:
            self.cache_listener([NOTHING_CACHED])
        deliver((stream, EngineError(reason)) for stream in streams.values())

    def receive(self, report: Report) -> None:
        """Pass a report on to those it concerns; from any thread, one at a time."""
        if report.stats is not None:
            first = self._before is _NO_STATS
            self._stats = report.stats if first else report.stats.following(self._before)
        if report.cache_events:
            self.cache_listener(report.cache_events)
        numbers = {}
        items = []
        for number, item in report.items:
            # A request that was left meanwhile is not in the table, and misses nothing.
            if (stream := self._streams.get(number)) is not None:
                numbers[stream] = number
                items.append((stream, item))
        for stream in deliver(items):
            self._leave(numbers[stream], aborts=True)

    @property
    def fingerprint(self) -> bytes:
        """Identifies the model's KV; empty before there was an engine."""
        return b"" if self._last is None else self._last.description.fingerprint

    @property
    def adapters(self) -> tuple[bytes, ...]:
        """Identify the KV of adapters 1, 2 and so on."""
        return () if self._last is None else self._last.description.adapters

    @property
    def ready(self) -> bool:
        return self._engine is not None or self.waken is not None

    @property
    def has_requests(self) -> bool:
        """Whether a request is open."""
        return bool(self._streams)

    @property
    def unready_reason(self) -> str:
        return self._refusal

    @property
    def detail(self) -> tuple[str, ...]:
        asleep = () if self.waken is None else (f"{self._refusal}; a request wakes it",)
        return asleep if self._last is None else asleep + self._last.description.detail

    @property
    def max_model_len(self) -> int:
        # Raises UnavailableError before there was an engine.
        if self._last is None:
            raise UnavailableError(self._refusal)
        return self._last.description.max_model_len

    def stats(self) -> EngineStats:
        # As of the last report that had figures.
        return self._stats

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TextDelta, None]:
        if self.waken is not None:
            await self.waken()
        description = self._current().description
        _validate(request, description)
        hashes = await _hash_prompt(description.fingerprint_of(request.adapter), request)
        stream = Stream(asyncio.get_running_loop())
        if self.waken is not None:  # it fell asleep meanwhile
            await self.waken()
        with self._lock:
            engine = self._current()
            number = next(self._numbers)
            self._streams[number] = stream
        if engine.description != description:
            hashes = ()  # another engine took the place meanwhile
        context = request.prompt_tokens[-_CONTEXT_TOKENS:] if request.text.continues else ()
        choices = {
            index: Choice(
                index,
                request.sampling.stop,
                engine.text.detokenizer(request.text.markup, context),
                min_tokens=request.sampling.min_tokens,
                reasoning=request.text.reasoning,
                reports_end=request.text.reports_end,
            )
            for index in range(request.n)
        }
        over = False
        try:
            arrived = monotonic() if request.arrived is None else request.arrived
            self._send(Submit(number, request, arrived, hashes))
            while choices:
                for tokens in await stream.receive():
                    choice = choices.get(tokens.index)
                    # The engine learns of a stop string later than this.
                    delta = None if choice is None else await text_of(choice, tokens)
                    if delta is None:
                        continue
                    if delta.finish_reason is not None:
                        del choices[delta.index]
                        over = not choices
                        if tokens.finish_reason is None:
                            self._send(Abort(number, delta.index, FinishReason.STOP, monotonic()))
                    yield delta
        except (EngineError, RequestRejectedError, OverloadedError):
            over = True  # nothing is left to abort
            raise
        finally:
            self._leave(number, aborts=not over)

    def _current(self) -> _Engine:
        if self._engine is None:
            raise UnavailableError(self._refusal)
        return self._engine

    def _leave(self, number: int, *, aborts: bool) -> None:
        if self._streams.pop(number, None) is not None and aborts:
            self._send(Abort(number, None, FinishReason.ABORT, monotonic()))


def _validate(request: GenerationRequest, engine: EngineDescription) -> None:
    num_prompt_tokens = len(request.prompt_tokens)
    if num_prompt_tokens == 0:
        raise RequestRejectedError("the prompt has no tokens")
    if num_prompt_tokens >= engine.max_model_len:
        raise RequestRejectedError(
            f"the prompt has {num_prompt_tokens} tokens; the context of {engine.max_model_len} "
            "leaves no room for an answer"
        )
    if not 0 <= min(request.prompt_tokens) <= max(request.prompt_tokens) < engine.vocab_size:
        raise RequestRejectedError(f"prompt tokens must lie in 0 to {engine.vocab_size - 1}")
    max_tokens = request.sampling.max_tokens
    if request.n < 1 or (max_tokens is not None and max_tokens < 1):
        raise RequestRejectedError("n and max_tokens must be at least 1")
    if not 0 <= request.adapter <= len(engine.adapters):
        raise RequestRejectedError(f"there is no adapter {request.adapter}")


async def _yielding(pieces: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield each of ``pieces``; other tasks run in between where they take long."""
    began = monotonic()
    for piece in pieces:
        yield piece
        if monotonic() - began > _YIELD_AFTER_SECONDS:
            await asyncio.sleep(0)
            began = monotonic()


async def _hash_prompt(fingerprint: bytes, request: GenerationRequest) -> tuple[bytes, ...]:
    """Return the hashes of the prompt's blocks: here, so that the engine's loop need not."""
    hashes = [root_hash(fingerprint, request.cache_salt)]
    num_blocks = len(request.prompt_tokens) // BLOCK_SIZE
    async for done in _yielding(range(0, num_blocks, _BLOCKS)):
        extend_block_hashes(hashes, request.prompt_tokens, min(done + _BLOCKS, num_blocks))
    return tuple(hashes)


async def text_of(choice: Choice, tokens: TokenDelta) -> TextDelta | None:
    """Return what ``choice.push`` makes of ``tokens``."""
    if len(tokens.tokens) <= _TOKENS:
        return choice.push(tokens)
    deltas: list[TextDelta] = []
    async with aclosing(_yielding(_pieces(tokens))) as pieces:
        async for piece in pieces:
            if (delta := choice.push(piece)) is not None:
                deltas.append(delta)
                if delta.finish_reason is not None:
                    break  # a stop string, perhaps, and what follows it is not looked at
    if not deltas:
        return None
    return replace(
        deltas[-1],
        text="".join(delta.text for delta in deltas),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        prompt_logprobs=deltas[0].prompt_logprobs,
        times=deltas[0].times,
    )


def _pieces(tokens: TokenDelta) -> Iterator[TokenDelta]:
    last = len(tokens.tokens) - _TOKENS
    for start in range(0, len(tokens.tokens), _TOKENS):
        piece = slice(start, start + _TOKENS)
        yield tokens._replace(
            tokens=tokens.tokens[piece],
            logprobs=tokens.logprobs[piece],
            finish_reason=tokens.finish_reason if start >= last else None,
            prompt_logprobs=tokens.prompt_logprobs if start == 0 else (),
            times=tokens.times if start == 0 else None,
        )
