"""The attributes of spans and metrics, by OpenTelemetry's semantic conventions.

Laws:
- A name comes from the conventions' package. ``refrain.*`` is for what has no convention.
- No attribute holds a prompt, an answer, a key, a path that a client made, or a stop sequence.
- A client or an upstream chooses some values: their types, lengths and ranges are checked here,
  since the encoder drops a whole batch of spans for one bad value.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv._incubating.attributes import http_attributes as http
from opentelemetry.semconv.attributes import error_attributes as error
from opentelemetry.semconv.attributes import server_attributes as server
from opentelemetry.semconv.attributes import url_attributes as url

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.request import CacheRequest
from gateway.telemetry.observation import AnswerFacts, Attempt, CallFacts, Observation, Place

Attributes = dict[str, Any]

OPERATIONS = {endpoint.value: spec.operation for endpoint, spec in SPECS.items()}

_LONGEST = 256
_MOST_REASONS = 16
_MOST_INTEGER = 2**63
_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"}
)

_Provider = gen_ai.GenAiProviderNameValues
_BY_PRESET = {
    "openai": _Provider.OPENAI.value,
    "azure": _Provider.AZURE_AI_OPENAI.value,
    "gemini": _Provider.GCP_GEMINI.value,
    "anthropic": _Provider.ANTHROPIC.value,
    "groq": _Provider.GROQ.value,
    "mistral": _Provider.MISTRAL_AI.value,
    "deepseek": _Provider.DEEPSEEK.value,
}
"""A preset that is not here is its own provider, such as ``vllm``."""
_BY_HOST = {
    "api.openai.com": _Provider.OPENAI.value,
    ".openai.azure.com": _Provider.AZURE_AI_OPENAI.value,
    ".services.ai.azure.com": _Provider.AZURE_AI_INFERENCE.value,
    "generativelanguage.googleapis.com": _Provider.GCP_GEMINI.value,
    "aiplatform.googleapis.com": _Provider.GCP_VERTEX_AI.value,
    "-aiplatform.googleapis.com": _Provider.GCP_VERTEX_AI.value,
    ".anthropic.com": _Provider.ANTHROPIC.value,
    ".amazonaws.com": _Provider.AWS_BEDROCK.value,
    ".cohere.com": _Provider.COHERE.value,
    ".cohere.ai": _Provider.COHERE.value,
    ".deepseek.com": _Provider.DEEPSEEK.value,
    ".groq.com": _Provider.GROQ.value,
    ".ml.cloud.ibm.com": _Provider.IBM_WATSONX_AI.value,
    ".mistral.ai": _Provider.MISTRAL_AI.value,
    ".perplexity.ai": _Provider.PERPLEXITY.value,
    ".x.ai": _Provider.X_AI.value,
}
"""Providers by the end of a host's name."""
RESPONSE_MODEL = gen_ai.GEN_AI_RESPONSE_MODEL

COMPATIBLE = "openai_compatible"
"""The provider of an upstream of which only the form of its API is known."""

_INTEGERS = {
    "max_tokens": gen_ai.GEN_AI_REQUEST_MAX_TOKENS,
    "max_completion_tokens": gen_ai.GEN_AI_REQUEST_MAX_TOKENS,
    "max_output_tokens": gen_ai.GEN_AI_REQUEST_MAX_TOKENS,
    "n": gen_ai.GEN_AI_REQUEST_CHOICE_COUNT,
    "seed": gen_ai.GEN_AI_REQUEST_SEED,
    "dimensions": gen_ai.GEN_AI_EMBEDDINGS_DIMENSION_COUNT,
}
_NUMBERS = {
    "temperature": gen_ai.GEN_AI_REQUEST_TEMPERATURE,
    "top_p": gen_ai.GEN_AI_REQUEST_TOP_P,
    "top_k": gen_ai.GEN_AI_REQUEST_TOP_K,
    "frequency_penalty": gen_ai.GEN_AI_REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": gen_ai.GEN_AI_REQUEST_PRESENCE_PENALTY,
}


@lru_cache(maxsize=256)
def provider_of(place: Place) -> str:
    """Return the provider of an upstream: by its preset, its host, or the form of its API."""
    if place.preset is not None:
        return _BY_PRESET.get(place.preset, place.preset)
    host = f".{place.address.lower()}"
    for end, provider in _BY_HOST.items():
        if host.endswith(end if end.startswith((".", "-")) else f".{end}"):
            return provider
    return _Provider.ANTHROPIC.value if place.api == "anthropic" else COMPATIBLE


def answer_facts(result: Any) -> AnswerFacts | None:
    """Return what a whole answer says of itself, in any of the forms of an answer."""
    if not isinstance(result, dict):
        return None
    match result:
        case {"choices": list(choices)}:
            reasons = [one.get("finish_reason") for one in choices if isinstance(one, dict)]
        case {"type": "message"}:
            reasons = [result.get("stop_reason")]
        case {"incomplete_details": {"reason": reason}}:
            reasons = [reason]
        case {"object": "response", "status": status}:
            reasons = [status]
        case _:
            reasons = []
    texts = [one for each in reasons[:_MOST_REASONS] if (one := _text(each)) is not None]
    return AnswerFacts(_text(result.get("model")), _text(result.get("id")), tuple(texts))


def of_answer(answer: AnswerFacts | None) -> Attributes:
    """Return what an answer says of itself."""
    if answer is None:
        return {}
    return {
        gen_ai.GEN_AI_RESPONSE_MODEL: answer.model,
        gen_ai.GEN_AI_RESPONSE_ID: answer.response_id,
        gen_ai.GEN_AI_RESPONSE_FINISH_REASONS: answer.finish_reasons or None,
    }


def of_operation(request: CacheRequest, attempt: Attempt) -> Attributes:
    """Return what is asked of an upstream, as metrics have it too."""
    place = attempt.place
    return {
        gen_ai.GEN_AI_OPERATION_NAME: SPECS[request.endpoint].operation,
        gen_ai.GEN_AI_PROVIDER_NAME: provider_of(place),
        gen_ai.GEN_AI_REQUEST_MODEL: _text(attempt.model or request.model),
        server.SERVER_ADDRESS: place.address,
        server.SERVER_PORT: place.port,
    }


def of_parameters(request: CacheRequest) -> Attributes:
    """Return the parameters of a request."""
    body = request.asked
    found: Attributes = {gen_ai.GEN_AI_REQUEST_STREAM: True if request.streamed else None}
    for field, name in _INTEGERS.items():
        value = body.get(field)
        if type(value) is int and -_MOST_INTEGER <= value < _MOST_INTEGER:
            found[name] = value
    if found.get(gen_ai.GEN_AI_REQUEST_CHOICE_COUNT) == 1:
        del found[gen_ai.GEN_AI_REQUEST_CHOICE_COUNT]
    for field, name in _NUMBERS.items():
        value = body.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if abs(value) < _MOST_INTEGER:
            found[name] = float(value)
    match body.get("response_format"):
        case {"type": "json_object" | "json_schema"}:
            found[gen_ai.GEN_AI_OUTPUT_TYPE] = gen_ai.GenAiOutputTypeValues.JSON.value
        case {"type": "text"}:
            found[gen_ai.GEN_AI_OUTPUT_TYPE] = gen_ai.GenAiOutputTypeValues.TEXT.value
    return found


def of_usage(call: CallFacts) -> Attributes:
    """Return the tokens of a call, as the upstream counts them."""
    usage = call.usage
    return {
        gen_ai.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt,
        gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: usage.completion,
        gen_ai.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: usage.cached,
        gen_ai.GEN_AI_USAGE_CACHE_CREATION_INPUT_TOKENS: usage.written,
    }


def of_reply(attempt: Attempt, number: int, *, streamed: bool) -> Attributes:
    """Return how an upstream replied; ``number`` counts the requests of one call from 0."""
    first_chunk = None
    if streamed and attempt.first_chunk is not None:
        first_chunk = attempt.first_chunk - attempt.began
    return {
        http.HTTP_RESPONSE_STATUS_CODE: attempt.status or None,
        http.HTTP_REQUEST_RESEND_COUNT: number or None,
        gen_ai.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: first_chunk,
        "refrain.upstream": attempt.place.name,
    }


def of_error(kind: str | None) -> Attributes:
    """Return the kind of an error, if there is one."""
    return {error.ERROR_TYPE: kind}


def client_span_name(attributes: Mapping[str, Any]) -> str:
    """Return the name of the span of a request to an upstream: operation and model."""
    operation, model = gen_ai.GEN_AI_OPERATION_NAME, gen_ai.GEN_AI_REQUEST_MODEL
    return f"{attributes[operation]} {attributes[model] or ''}".strip()


def server_span_name(seen: Observation) -> str:
    """Return the name of a request's span: method and route."""
    if not seen.method:
        return seen.outcome  # a call of ours: refresh, sample
    return f"{seen.method if seen.method in _METHODS else 'HTTP'} {seen.endpoint}"


def server_error(seen: Observation) -> str | None:
    """Return the kind of a request's error; a refusal of the client's request is none."""
    if seen.outcome == "error":
        return seen.reason.value if seen.reason is not None else error.ErrorTypeValues.OTHER.value
    return str(seen.status) if seen.status >= HTTPStatus.INTERNAL_SERVER_ERROR else None


def of_server(seen: Observation, host: str) -> Attributes:
    """Return the attributes of a request's span; ``host`` is the header."""
    address, _, port = host.rpartition(":") if ":" in host.rpartition("]")[2] else (host, "", "")
    known, numbered = seen.method in _METHODS, re.fullmatch("[0-9]{1,5}", port)
    http_attributes: Attributes = {}
    if seen.method:
        http_attributes = {
            http.HTTP_REQUEST_METHOD: seen.method if known else "_OTHER",
            http.HTTP_ROUTE: seen.endpoint,
            # A path that passes through is the client's text.
            url.URL_PATH: seen.endpoint if seen.endpoint in OPERATIONS else None,
            url.URL_SCHEME: "http",
            http.HTTP_RESPONSE_STATUS_CODE: seen.status or None,
            http.HTTP_REQUEST_BODY_SIZE: seen.request_bytes,
            http.HTTP_RESPONSE_BODY_SIZE: seen.answer_bytes,
            server.SERVER_ADDRESS: _text(address.strip("[]")),
            server.SERVER_PORT: int(port) if numbered else None,
        }
    return {
        **http_attributes,
        gen_ai.GEN_AI_OPERATION_NAME: OPERATIONS.get(seen.endpoint),
        gen_ai.GEN_AI_REQUEST_MODEL: _text(seen.asked.model),
        gen_ai.GEN_AI_REQUEST_STREAM: seen.asked.streamed or None,
        **of_error(server_error(seen)),
        **_of_gateway(seen),
    }


def _of_gateway(seen: Observation) -> Attributes:
    semantic = None if seen.hit is None else seen.hit.status
    compression = seen.call.compression
    return {
        "refrain.outcome": seen.outcome,
        "refrain.reason": seen.reason and seen.reason.value,
        "refrain.declined": seen.call.declined and seen.call.declined.value,
        "refrain.ineligible": seen.lookup.ineligible and seen.lookup.ineligible.value,
        "refrain.semantic_fault": seen.lookup.semantic_fault,
        "refrain.rule": seen.asked.rule,
        "refrain.rewrites": [each.value for each in seen.call.rewrites] or None,
        "refrain.rewrites_declined": list(map(str, seen.call.not_rewritten)) or None,
        "refrain.compress": compression and ([each.value for each in compression.steps] or None),
        "refrain.compress_declined": compression
        and compression.refused
        and compression.refused.value,
        "refrain.compress_saved_tokens": compression and compression.saved,
        "refrain.similarity": semantic and semantic.similarity,
        "refrain.semantic_score": semantic and semantic.score,
        "refrain.semantic_threshold": semantic and semantic.threshold,
        "refrain.stored": seen.call.stored,
        "refrain.fallback_model": seen.asked.fallback_model,
        "refrain.upstream": seen.call.upstream,
        "refrain.upstream_tried": [f"{name}={why}" for name, why in seen.call.tried] or None,
        "refrain.time_to_first_token": _between(seen.started, seen.first_token),
        "refrain.decode_time": _between(seen.first_token, seen.ended),
        "refrain.upstream_time": _between(seen.call.started, seen.call.head),
    }


def present(attributes: Mapping[str, Any]) -> Attributes:
    """Leave out what has no value."""
    return {name: value for name, value in attributes.items() if value not in (None, "")}


def _text(value: Any) -> str | None:
    """Return a text that can be encoded, and is not too long; None for any other value."""
    if not isinstance(value, str):
        return None
    return value[:_LONGEST].encode("utf-8", "replace").decode()


def _between(start: float | None, end: float | None) -> float | None:
    return end - start if start is not None and end is not None else None
