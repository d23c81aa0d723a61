"""One HTTP request's generation: several prompts as one stream of deltas, and what came of it.

Law: a stream that ends without a finish reason for every choice has failed, and is never passed
off as an answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from backend.ports import EngineError, Generator
from backend.scheduler.request import (
    FinishReason,
    GenerationRequest,
    Priority,
    SamplingParams,
    TextDelta,
    TokenLogprobs,
)
from backend.server.replies import FinishedChoice, Usage


@dataclass(frozen=True, slots=True)
class Generation:
    """What is to be generated: ``n`` choices for each prompt.

    Choices are numbered over all prompts: those of the first come first.
    """

    id: str
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    n: int
    priority: Priority = Priority.NORMAL
    stream: bool = True
    prompt_only: bool = False
    """Nothing is generated: of the one token that the engine computes nothing is told."""
    queue_seconds: float | None = None
    cache_salt: str = ""
    arrived: float | None = None
    """When the HTTP request did, on the clock of ``time.monotonic``."""

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return len(self.prompts) * self.n

    def deltas(self, generator: Generator) -> AsyncGenerator[TextDelta, None]:
        """Return the deltas of all choices as they come; closing it cancels what still runs.

        Raises what the generator raises: RequestRejectedError, OverloadedError, EngineError.
        """
        streams = [
            generator.generate(
                GenerationRequest(
                    request_id=f"{self.id}-{position}",
                    prompt_tokens=prompt,
                    sampling=self.sampling,
                    n=self.n,
                    priority=self.priority,
                    stream=self.stream,
                    queue_seconds=self.queue_seconds,
                    cache_salt=self.cache_salt,
                    arrived=self.arrived,
                    among=self.num_choices,
                )
            )
            for position, prompt in enumerate(self.prompts)
        ]
        deltas = streams[0] if len(streams) == 1 else _merge(streams, self.n)
        return _emptied(deltas) if self.prompt_only else deltas


async def _emptied(deltas: AsyncGenerator[TextDelta, None]) -> AsyncGenerator[TextDelta, None]:
    async with aclosing(deltas):
        async for delta in deltas:
            reason = None if delta.finish_reason is None else FinishReason.LENGTH
            if delta.finish_reason is FinishReason.ABORT:
                reason = FinishReason.ABORT
            yield replace(delta, text="", completion_tokens=0, logprobs=(), finish_reason=reason)


@dataclass(frozen=True, slots=True)
class _Ended:
    error: Exception | None


async def _merge(
    streams: Sequence[AsyncGenerator[TextDelta, None]], n: int
) -> AsyncGenerator[TextDelta, None]:
    """Interleave, renumbering choices. The first failure ends everything.

    What is not read is not fetched either: it gathers where it becomes one delta.
    """
    arrivals: asyncio.Queue[TextDelta | _Ended] = asyncio.Queue(maxsize=len(streams))

    async def pump(position: int, stream: AsyncGenerator[TextDelta, None]) -> None:
        error: Exception | None = None
        try:
            async with aclosing(stream):
                async for delta in stream:
                    await arrivals.put(replace(delta, index=position * n + delta.index))
        except Exception as failure:  # noqa: BLE001  # raised again by the reader
            error = failure
        await arrivals.put(_Ended(error))

    pumps = [asyncio.create_task(pump(*item)) for item in enumerate(streams)]
    try:
        open_streams = len(streams)
        while open_streams:
            arrival = await arrivals.get()
            if isinstance(arrival, TextDelta):
                yield arrival
            elif arrival.error is not None:
                raise arrival.error
            else:
                open_streams -= 1
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


@dataclass(slots=True)
class Tally:
    """What arrived so far."""

    generation: Generation
    _texts: list[list[str]] = field(init=False)
    _logprobs: list[list[TokenLogprobs]] = field(init=False)
    _prompts: list[tuple[TokenLogprobs, ...]] = field(init=False)
    _tokens: list[int] = field(init=False)
    _cached: list[int | None] = field(init=False)
    _reasons: list[FinishReason | None] = field(init=False)
    _begun: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        """Begin empty."""
        count = self.generation.num_choices
        self._texts = [[] for _ in range(count)]
        self._logprobs = [[] for _ in range(count)]
        self._prompts = [()] * count
        self._tokens = [0] * count
        self._cached = [None] * count
        self._reasons = [None] * count
        self._begun = [False] * count

    def add(self, delta: TextDelta) -> None:
        """Take the next delta. Raises EngineError when the engine gave the choice up."""
        self._begun[delta.index] = True
        self._tokens[delta.index] = delta.completion_tokens
        self._cached[delta.index] = delta.cached_tokens
        if delta.text:
            self._texts[delta.index].append(delta.text)
        self._logprobs[delta.index] += delta.logprobs
        self._prompts[delta.index] += delta.prompt_logprobs
        if delta.finish_reason is FinishReason.ABORT:
            raise EngineError("the generation was given up")
        self._reasons[delta.index] = delta.finish_reason

    def is_first(self, index: int) -> bool:
        """Whether nothing of this choice arrived yet."""
        return not self._begun[index]

    def choices(self) -> tuple[FinishedChoice, ...]:
        """Return the whole answer. Raises EngineError when it is not whole."""
        finished = []
        for texts, reason, logprobs, prompt in zip(
            self._texts, self._reasons, self._logprobs, self._prompts, strict=True
        ):
            if reason is None:
                raise EngineError("the generation ended early")
            finished.append(FinishedChoice("".join(texts), reason, tuple(logprobs), prompt))
        return tuple(finished)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        n = self.generation.n
        return Usage(
            prompt_tokens=sum(map(len, self.generation.prompts)),
            completion_tokens=sum(self._tokens),
            # Choices of one prompt find what the first of them computed; that saved the rest, but
            # the prompt counts once, and so does what no choice computed.
            cached_tokens=sum(
                min(known)
                for start in range(0, len(self._cached), n)
                if (known := [each for each in self._cached[start : start + n] if each is not None])
            ),
        )
