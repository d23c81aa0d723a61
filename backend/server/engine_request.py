"""From a checked request to what the engine is asked for."""

import uuid
from dataclasses import replace

from aiohttp import web

from backend.scheduler.request import SamplingParams
from backend.server.generation import Generation
from backend.server.prompts import check_biases
from backend.server.protocol.generation import GenerationFields
from backend.server.request_headers import kv_salt, priority, queue_seconds
from backend.server.served_model import LoadedModel
from backend.server.structured import Constraint


def sampling_of(
    asked: GenerationFields,
    max_tokens: int | None,
    logprobs: int | None,
    loaded: LoadedModel,
) -> SamplingParams:
    """Return how ``asked`` is to be sampled, as the model's makers advise where it does not say.

    Raises ApiError.
    """
    advised = loaded.sampling
    check_biases(asked.token_biases, loaded.encoder.vocab_size)
    return SamplingParams(
        temperature=advised.temperature if asked.temperature is None else asked.temperature,
        top_p=advised.top_p if asked.top_p is None else asked.top_p,
        top_k=advised.top_k if asked.top_k is None else max(asked.top_k, 0),
        min_p=advised.min_p if asked.min_p is None else asked.min_p,
        seed=asked.seed,
        max_tokens=max_tokens,
        min_tokens=asked.min_tokens or 0,
        stop=asked.stop_strings,
        stop_token_ids=frozenset(asked.stop_token_ids or ()),
        ignore_eos=asked.ignore_eos or False,
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        repetition_penalty=asked.repetition_penalty or advised.repetition_penalty,
        logit_bias=asked.token_biases,
        logprobs=logprobs,
    )


def constrained(sampling: SamplingParams, constraint: Constraint | None) -> SamplingParams:
    """Return how to sample under ``constraint``."""
    return sampling if constraint is None else replace(sampling, grammar=constraint.grammar)


def generation_of(
    prefix: str,
    prompts: tuple[tuple[int, ...], ...],
    asked: GenerationFields,
    sampling: SamplingParams,
    request: web.Request,
    *,
    arrived: float,
) -> Generation:
    """Return what is to be generated; headers say who asks and how urgently. Raises ApiError."""
    headers = request.headers
    return Generation(
        id=f"{prefix}{uuid.uuid4().hex}",
        prompts=prompts,
        sampling=sampling,
        n=asked.n or 1,
        stream=asked.stream or False,
        priority=priority(headers),
        queue_seconds=queue_seconds(headers),
        cache_salt=kv_salt(headers, asked.cache_salt),
        arrived=arrived,
    )
