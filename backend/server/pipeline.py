"""One generation: what a checked request asks of the engine, and the reply, whole or as events.

Law: a stream that ends without a finish reason for every choice has failed, and is never passed
off as an answer.
"""

import asyncio
import hashlib
import logging
import math
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import orjson
from aiohttp import web

from backend.ports import (
    EngineError,
    Generator,
    GrammarRejectedError,
    OverloadedError,
    RequestRejectedError,
    UnavailableError,
)
from backend.scheduler.request import (
    FinishReason,
    GenerationRequest,
    Priority,
    SamplingParams,
    TextDelta,
    TextForm,
    TokenLogprobs,
)
from backend.server.prompts import off_loop
from backend.server.protocol.errors import (
    ApiError,
    engine_failed,
    internal_error,
    invalid,
    overloaded,
    unavailable,
)
from backend.server.protocol.generation import GenerationFields
from backend.server.replies import EventStream, FinishedChoice, Reply, Usage
from backend.server.served_model import LoadedModel
from backend.server.structured import Constraint

QUEUE_TIMEOUT = "X-Refrain-Queue-Timeout"
PRIORITY = "X-Refrain-Priority"
PREFILL = "X-Refrain-Prefill"
CACHE_SALT = "X-Refrain-Cache-Salt"
"""Of a gateway, which alone knows its tenants, for what has no body to say it."""

_TENANT = ("Authorization", "api-key", "x-api-key", "OpenAI-Organization", "OpenAI-Project")

_PRIORITIES = {priority.name.lower(): priority for priority in Priority}

FAILURES = (EngineError, OverloadedError, RequestRejectedError)
"""What a generation raises."""

NOT_ENFORCED = "Schema-Not-Enforced"
"""Of a reply: what of the request's schemas its grammar leaves out."""

_MOST_ADDRESS = 300
_MOST_TOLD = 1_000  # characters of a header
_ON_LOOP_CHARACTERS = 20_000
"""Writing this many takes a millisecond or two."""
_CHARACTERS_OF_A_LOGPROB = 400  # twenty others belong to it, perhaps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Generation:
    """What is to be generated: as many choices for each of the prompts, all sampled alike.

    Choices are numbered over all prompts: those of the first come first.
    """

    id: str
    requests: Sequence[GenerationRequest]
    prompt_only: bool = False
    """Nothing is generated: the one token that the engine computes is not sent."""

    @property
    def first(self) -> GenerationRequest:
        """The request of the first prompt; the others differ by their prompts alone."""
        return self.requests[0]

    def deltas(self, generator: Generator) -> AsyncGenerator[TextDelta, None]:
        """Return the deltas of all choices as they come; closing it cancels what still runs.

        Raises what the generator raises: RequestRejectedError, OverloadedError, EngineError.
        """
        streams = [generator.generate(request) for request in self.requests]
        deltas = streams[0] if len(streams) == 1 else _merge(streams, self.first.n)
        return _emptied(deltas) if self.prompt_only else deltas


async def _emptied(deltas: AsyncGenerator[TextDelta, None]) -> AsyncGenerator[TextDelta, None]:
    async with aclosing(deltas):
        async for delta in deltas:
            is_stop = delta.finish_reason is FinishReason.STOP
            reason = FinishReason.LENGTH if is_stop else delta.finish_reason
            yield replace(delta, text="", completion_tokens=0, logprobs=(), finish_reason=reason)


async def _merge(
    streams: Sequence[AsyncGenerator[TextDelta, None]], n: int
) -> AsyncGenerator[TextDelta, None]:
    """Interleave, renumbering choices. The first failure ends everything.

    What is not read is not fetched either: it gathers where it becomes one delta.
    """
    # None, or an exception, is a stream's end.
    arrivals: asyncio.Queue[TextDelta | Exception | None] = asyncio.Queue(maxsize=len(streams))

    async def pump(position: int, stream: AsyncGenerator[TextDelta, None]) -> None:
        end: Exception | None = None
        try:
            async with aclosing(stream):
                async for delta in stream:
                    await arrivals.put(replace(delta, index=position * n + delta.index))
        except Exception as failure:  # noqa: BLE001  # raised again by the reader
            end = failure
        await arrivals.put(end)

    pumps = [asyncio.create_task(pump(*item)) for item in enumerate(streams)]
    try:
        open_streams = len(streams)
        while open_streams:
            arrival = await arrivals.get()
            if isinstance(arrival, TextDelta):
                yield arrival
            elif arrival is not None:
                raise arrival
            else:
                open_streams -= 1
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def sampling_params(
    body: GenerationFields,
    loaded: LoadedModel,
    constraint: Constraint | None,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Return how to sample: as ``body`` says, else as the model's makers advise.

    Raises ApiError where a bias is for no token of the vocabulary.
    """
    advised, vocab_size = loaded.sampling, loaded.encoder.vocab_size
    biases = body.token_biases
    for token, _ in biases:
        if token >= vocab_size:
            problem = f"token {token} is not in the vocabulary of {vocab_size} tokens"
            raise invalid(f"Invalid key in 'logit_bias': {problem}.", "logit_bias")
    return SamplingParams(
        temperature=advised.temperature if body.temperature is None else body.temperature,
        top_p=advised.top_p if body.top_p is None else body.top_p,
        top_k=advised.top_k if body.top_k is None else max(body.top_k, 0),
        min_p=advised.min_p if body.min_p is None else body.min_p,
        seed=body.seed,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        stop=body.stop_strings,
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos or False,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or advised.repetition_penalty,
        logit_bias=biases,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=None if constraint is None else constraint.grammar,
    )


def new_generation(
    prefix: str,
    prompts: tuple[tuple[int, ...], ...],
    body: GenerationFields,
    sampling: SamplingParams,
    request: web.Request,
    *,
    arrived: float,
    text: TextForm,
    adapter: int = 0,
    prompt_only: bool = False,
) -> Generation:
    """Return what is to be generated; headers say who asks and how urgently. Raises ApiError."""
    headers = request.headers
    generation_id = f"{prefix}{uuid.uuid4().hex}"
    first = GenerationRequest(
        f"{generation_id}-0",
        prompts[0],
        sampling,
        n=body.n or 1,
        priority=_PRIORITIES.get(headers.get(PRIORITY, ""), Priority.NORMAL),
        cache_salt=kv_salt(headers, body.cache_salt),
        stream=body.stream or False,
        queue_seconds=_queue_seconds(headers),
        arrived=arrived,
        among=len(prompts) * (body.n or 1),
        text=text,
        adapter=adapter,
        prefill=headers.get(PREFILL, "")[:_MOST_ADDRESS],
    )
    others = (
        replace(first, request_id=f"{generation_id}-{position}", prompt_tokens=prompt)
        for position, prompt in enumerate(prompts[1:], 1)
    )
    return Generation(generation_id, (first, *others), prompt_only)


def kv_salt(headers: Mapping[str, str], client_salt: str | None) -> str:
    """Return the salt of the request's KV blocks; empty where neither tenant nor salt is given.

    A cached prefix is computed faster, so requests that share KV can time one another. A gateway's
    or a client's salt divides a tenant's KV further: it is hashed with it and never replaces it.
    """
    credentials = [headers.get(name, "") for name in _TENANT]
    # A header holds no NUL.
    tenant = _digest("\0".join(credentials)) if any(credentials) else ""
    for salt in (headers.get(CACHE_SALT), client_salt):
        if salt:
            # The tenant's part is empty or 64 characters of hex, so the comma is the first one.
            tenant = _digest(f"{tenant},{salt}")
    return tenant


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _queue_seconds(headers: Mapping[str, str]) -> float | None:
    """Return how long a request may wait before anything is computed for it."""
    text = headers.get(QUEUE_TIMEOUT)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise invalid(f"Invalid header '{QUEUE_TIMEOUT}': expected seconds above 0.", QUEUE_TIMEOUT)
    return seconds


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """A generation as a trace shows it.

    ``times`` are when its first step began and when its first token came, if it came so far.
    """

    id: str
    request: GenerationRequest
    usage: Usage
    finish_reasons: tuple[str, ...]
    times: tuple[float, float] | None


WATCH: web.RequestKey[Callable[[Callable[[], GenerationFacts]], None]] = web.RequestKey("watch")
"""Called with what tells of a generation at the request's end, if a trace records the request."""


@dataclass(slots=True)
class _Choice:
    """What arrived of one choice."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    cached_tokens: int | None = None
    """None until the first delta."""
    reason: FinishReason | None = None
    times: tuple[float, float] | None = None
    """When its first step began, and when its first token came."""


class Answer:
    """What of a generation arrived so far."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._choices = [_Choice() for _ in range(generation.first.among)]

    def add(self, delta: TextDelta) -> bool:
        """Take the next delta and return whether it is the first of its choice.

        Raises EngineError when the engine gave the choice up.
        """
        choice = self._choices[delta.index]
        first = choice.cached_tokens is None
        choice.num_tokens = delta.completion_tokens
        choice.num_reasoning_tokens = delta.reasoning_tokens
        choice.cached_tokens = delta.cached_tokens
        if delta.text:
            choice.texts.append(delta.text)
        choice.times = choice.times or delta.times
        choice.logprobs += delta.logprobs
        choice.prompt_logprobs += delta.prompt_logprobs
        if delta.finish_reason is FinishReason.ABORT:
            raise EngineError("the generation was given up")
        choice.reason = delta.finish_reason
        return first

    def choices(self) -> tuple[FinishedChoice, ...]:
        """Return the whole answer. Raises EngineError when it is not whole."""
        finished = []
        for each in self._choices:
            if each.reason is None:
                raise EngineError("the generation ended early")
            text = "".join(each.texts)
            finished.append(FinishedChoice(text, each.reason, each.logprobs, each.prompt_logprobs))
        return tuple(finished)

    def facts(self) -> GenerationFacts:
        """Return what a trace says of it, whole or not."""
        times = [each.times for each in self._choices if each.times is not None]
        return GenerationFacts(
            self._generation.id,
            self._generation.first,
            self.usage(),
            tuple(each.reason.value for each in self._choices if each.reason is not None),
            (min(began for began, _ in times), min(token for _, token in times)) if times else None,
        )

    def usage(self) -> Usage:
        """Return the tokens so far."""
        requests, n = self._generation.requests, self._generation.first.n
        cached = [each.cached_tokens for each in self._choices]
        # Choices of one prompt find what the first of them computed; that saved the rest, but the
        # prompt counts once, and so does what no choice computed.
        by_prompt = (
            [each for each in cached[start : start + n] if each is not None]
            for start in range(0, len(cached), n)
        )
        reasons = self._generation.first.text.reasoning is not None
        reasoned = sum(each.num_reasoning_tokens for each in self._choices) if reasons else None
        return Usage(
            prompt_tokens=sum(len(each.prompt_tokens) for each in requests),
            completion_tokens=sum(each.num_tokens for each in self._choices),
            cached_tokens=sum(min(known, default=0) for known in by_prompt),
            reasoning_tokens=reasoned,
        )


async def answer(
    request: web.Request,
    generation: Generation,
    generator: Generator,
    reply: Reply,
    constraint: Constraint | None,
) -> web.StreamResponse:
    """Generate, and write the reply. Raises ApiError for what fails before its first byte."""
    collected = Answer(generation)
    watch = request.get(WATCH, lambda _: None)
    watch(collected.facts)
    told = _not_enforced(constraint)
    events = EventStream(typed=reply.typed, headers=told) if generation.first.stream else None
    try:
        async with aclosing(generation.deltas(generator)) as deltas:
            async for delta in deltas:
                if events is not None and not events.prepared:
                    await events.prepare(request)
                    await events.send(reply.begin())
                first = collected.add(delta)
                if events is not None:
                    await events.send(reply.push(delta, collected.usage, first=first))
        choices, usage = collected.choices(), collected.usage()
        if events is None:
            return await _whole(reply, choices, usage, told)
        await events.finish(reply.finish(choices, usage))
    except Exception as error:
        is_known = isinstance(error, FAILURES)
        failure = api_error(error, constraint) if is_known else internal_error()
        if events is None or not events.prepared:
            if is_known:
                raise failure from error
            raise
        # Another response cannot be begun later, and nobody listens after a reset.
        if isinstance(error, ConnectionResetError):
            raise
        if not is_known:
            log.exception("%s failed in the middle of its stream", request.path)
        await events.fail(reply.fail(failure))
    return events


def _not_enforced(constraint: Constraint | None) -> Mapping[str, str]:
    left_out = "; ".join(() if constraint is None else constraint.left_out)
    return {NOT_ENFORCED: re.sub("[^ -~]", "?", left_out)[:_MOST_TOLD]} if left_out else {}


async def _whole(
    reply: Reply, choices: Sequence[FinishedChoice], usage: Usage, headers: Mapping[str, str]
) -> web.Response:
    effort = sum(len(each.text) + _CHARACTERS_OF_A_LOGPROB * len(each.logprobs) for each in choices)
    data = await off_loop(
        lambda: orjson.dumps(reply.whole(choices, usage)), effort > _ON_LOOP_CHARACTERS
    )
    return web.Response(body=data, content_type="application/json", headers=headers)


def api_error(error: Exception, constraint: Constraint | None) -> ApiError:
    """Return the error that a client gets for one of ``FAILURES``."""
    match error:
        case GrammarRejectedError() if constraint is not None:
            return constraint.refused(str(error))
        case RequestRejectedError():
            return ApiError(400, f"The engine cannot run this request: {error}.", code="rejected")
        case OverloadedError():
            return overloaded(error)
        case UnavailableError():
            return unavailable(str(error))
    return engine_failed(str(error))
