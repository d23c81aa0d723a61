"""One request of an exported log, of any program: body, answer, times, usage, and whose it is.

Law: a line is recognised by its fields, and what is not understood is an error that names the
expected form. What a log does not say is None, and never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import orjson

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.exact_json import dumps
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, prompt_tokens, prompt_usage
from gateway.server.admin.recorded_request import InvalidFieldError, RecordedRequest, read_request
from policies.decision import Endpoint

_MILLISECONDS = 1e11
"""A larger number is no count of seconds since 1970: it counts milliseconds."""
_REDACTED = ("redacted-by-litellm", "redacted_by_litellm")
_LITELLM_CALLS = {
    "completion": (Endpoint.CHAT, "messages"),
    "text_completion": (Endpoint.COMPLETIONS, "prompt"),
    "embedding": (Endpoint.EMBEDDINGS, "input"),
    "responses": (Endpoint.RESPONSES, "input"),
}
"""The endpoint of a call, and the field that LiteLLM logs as ``messages``."""
_NO_FIELDS = frozenset({"extra_body", "extra_headers", "max_retries", "metadata"})
"""Parameters of LiteLLM that are no fields of the request."""


class Format(StrEnum):
    """Who wrote a log."""

    OPENAI = "openai"
    LITELLM = "litellm"
    HELICONE = "helicone"
    REFRAIN = "refrain"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request and what became of it; times are seconds since 1970.

    ``answer`` is the complete result; None if the log does not hold it. ``storable`` is false if
    the log says that the answer was an error, or that it was not stored. ``holder`` names the
    client within the log, and ``user`` the end user whom the body does not name. ``called`` is
    false if the log's gateway made no call for the request: how long a call takes is not known.
    """

    request: RecordedRequest
    start: float | None = None
    end: float | None = None
    answer: dict[str, Any] | None = None
    storable: bool = True
    usage: PromptUsage = NOTHING_SAID
    holder: str | None = None
    user: str | None = None
    called: bool = True

    @property
    def seconds(self) -> float:
        if self.start is None or self.end is None:
            return 0.0
        return max(0.0, self.end - self.start)

    def with_user(self) -> "LoggedRequest":
        """Return the request with the end user in its body, as a policy by user needs it."""
        body = self.request.body
        if self.user is None or body.get("user") or body.get("safety_identifier"):
            return self
        raw = dumps({**body, "user": self.user})
        return replace(self, request=replace(self.request, raw=raw))


def read_line(line: Any, log_format: Format | None = None) -> LoggedRequest:
    """Read a line's JSON; None recognises the format. Raises InvalidFieldError."""
    if not isinstance(line, dict):
        raise InvalidFieldError("", "a JSON object")
    return _READERS[log_format or recognise(line)](line)


def recognise(line: Mapping[str, Any]) -> Format:
    """Tell by its fields who wrote a line."""
    if "request_body" in line:
        return Format.HELICONE
    if "messages" in line and ("startTime" in line or "call_type" in line):
        return Format.LITELLM
    if "decision" in line and "form" in line:
        return Format.REFRAIN
    return Format.OPENAI


def _openai(line: dict[str, Any]) -> LoggedRequest:
    """Read a body, bare or beside its answer, or a line of a batch."""
    response = _member(line, "response")
    if response is not None and not ("request" in line or "body" in line or "messages" in line):
        expected = "the request beside its answer (a batch's output has none: give its input file)"
        raise InvalidFieldError("request", expected)
    status = None if response is None else response.get("status_code")
    answer = _member(response, "body") if response is not None and "body" in response else response
    is_bare = "request" not in line and "body" not in line
    bare = {name: each for name, each in line.items() if name != "response"}
    request = read_request(bare if is_bare and response else line)
    request = _by_answer(request, answer)
    beside = {} if is_bare and not response else line
    start = _time(beside, "start", "time", "timestamp", "created_at")
    end = _time(beside, "end")
    if start is None and end is None and answer is not None:
        start = _time(answer, "created", "created_at")  # when the answer was made
    return LoggedRequest(
        request=request,
        start=end if start is None else start,
        end=end,
        answer=answer,
        storable=not _is_error(status) and not (answer or {}).get("error"),
        usage=_usage(request.endpoint, answer, line),
        holder=_text(beside.get("tenant")),
    )


def _litellm(line: dict[str, Any]) -> LoggedRequest:
    call = _text(line.get("call_type")) or "completion"
    kind = call.removeprefix("a") if call.removeprefix("a") in _LITELLM_CALLS else call
    if kind not in _LITELLM_CALLS:
        raise InvalidFieldError(
            "call_type", f"one of {', '.join(_LITELLM_CALLS)}, with or without a"
        )
    endpoint, field = _LITELLM_CALLS[kind]
    messages = line.get("messages")
    if not messages or any(mark in str(messages)[:200] for mark in _REDACTED):
        why = "not left out (turn_off_message_logging: false in LiteLLM's settings)"
        raise InvalidFieldError("messages", f"the prompt, {why}")
    given = line.get("model_parameters")
    parameters = given if isinstance(given, dict) else {}
    fields = {
        name: value
        for name, value in parameters.items()
        if value is not None and name not in _NO_FIELDS
    }
    model = line.get("model_group") or line.get("model")
    body = {**fields, "model": model, field: messages}
    metadata = _member(line, "metadata") or {}
    answer = _member(line, "response")
    if answer is not None and any(mark in str(answer) for mark in _REDACTED):
        answer = None
    request = read_request({"endpoint": endpoint, "body": body})
    key = metadata.get("user_api_key_hash") or line.get("api_key")
    team = metadata.get("user_api_key_team_id") or line.get("team_id")
    user = line.get("end_user") or metadata.get("user_api_key_end_user_id")
    return LoggedRequest(
        request=request,
        start=_time(line, "startTime"),
        end=_time(line, "endTime"),
        answer=answer or None,
        storable=line.get("status", "success") == "success",
        usage=_usage(endpoint, answer, line),
        holder=_text(key or team),
        user=_text(user),
    )


def _helicone(line: dict[str, Any]) -> LoggedRequest:
    body = _member(line, "request_body")
    if not body:
        raise InvalidFieldError("request_body", "the body: export with --include-body")
    path = _text(line.get("request_path"))
    known = path is not None and path.partition("?")[0] in [*Endpoint]
    model = line.get("request_model")
    if model and "model" not in body:
        body = {**body, "model": model}
    request = read_request({"body": body, **({"endpoint": path} if known else {})})
    answer = _member(line, "response_body")
    request = _by_answer(request, answer)
    start, end = _time(line, "request_created_at"), _time(line, "response_created_at")
    delay = line.get("delay_ms", line.get("latency"))
    if start is not None and isinstance(delay, int | float) and delay >= 0:
        end = start + delay / 1000
    counts = {**line, "cached_tokens": line.get("prompt_cache_read_tokens")}
    return LoggedRequest(
        request=request,
        start=start,
        end=end,
        answer=answer or None,
        storable=not _is_error(line.get("response_status")) and not (answer or {}).get("error"),
        usage=_usage(request.endpoint, answer, counts),
        user=_text(line.get("request_user_id")),
    )


def _refrain(line: dict[str, Any]) -> LoggedRequest:
    if "request" not in line:
        raise InvalidFieldError(
            "request", "the body (a gateway writes it with decision_log_requests)"
        )
    request = read_request(line)
    scopes = _member(line, "scopes") or {}
    called = line.get("outcome") != "hit" and line.get("reason") != Reason.COLLAPSED
    end, seconds = _time(line, "time"), line.get("seconds")
    start = end
    if end is not None and isinstance(seconds, int | float) and seconds > 0:
        start = max(0.0, end - seconds)
    return LoggedRequest(
        request=request,
        start=start,
        end=end if called else None,
        called=called,
        storable=not _is_error(line.get("status")) and line.get("declined") is None,
        usage=_usage_of_decision(request, line),
        holder=_text(scopes.get("tenant")),
    )


def _usage_of_decision(request: RecordedRequest, line: dict[str, Any]) -> PromptUsage:
    """Return the counts of a decision log, which has a hit's counts as one sum."""
    usage, tokens = _usage(request.endpoint, None, line), line.get("tokens")
    if not isinstance(tokens, int) or tokens <= 0:
        return usage
    prompt = usage.prompt
    if prompt is None:
        prompt = min(tokens, prompt_tokens(request.endpoint, request.body))
    return usage._replace(prompt=prompt, completion=max(0, tokens - prompt))


_READERS = {
    Format.OPENAI: _openai,
    Format.LITELLM: _litellm,
    Format.HELICONE: _helicone,
    Format.REFRAIN: _refrain,
}


def _by_answer(request: RecordedRequest, answer: Mapping[str, Any] | None) -> RecordedRequest:
    """Tell embeddings from responses by the answer, if the log does not name the endpoint."""
    if request.inferred and request.endpoint is Endpoint.RESPONSES and answer is not None:
        vectors = answer.get("data")
        if answer.get("object") == "list" or isinstance(vectors, list):
            return replace(request, endpoint=Endpoint.EMBEDDINGS)
    return request


def _usage(endpoint: Endpoint, answer: Any, line: Mapping[str, Any]) -> PromptUsage:
    said = prompt_usage(SPECS[endpoint].usage(answer)) if isinstance(answer, dict) else NOTHING_SAID
    beside = prompt_usage(
        {
            "prompt_tokens": line.get("prompt_tokens"),
            "completion_tokens": line.get("completion_tokens"),
            "prompt_tokens_details": {"cached_tokens": line.get("cached_tokens")},
        }
    )
    pairs = zip(said, beside, strict=True)
    return PromptUsage(*(other if own is None else own for own, other in pairs))


def _member(holder: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    """Return a member that is an object, or the JSON text of one; None for anything else."""
    value = None if holder is None else holder.get(name)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    return value if isinstance(value, dict) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _is_error(status: Any) -> bool:
    return isinstance(status, int) and status >= HTTPStatus.BAD_REQUEST


def _time(holder: Mapping[str, Any], *names: str) -> float | None:
    """Return the first of these times that is there. Raises InvalidFieldError."""
    for name in names:
        value = holder.get(name)
        if value is None or value == "":
            continue
        try:
            if isinstance(value, str):
                is_number = value.replace(".", "", 1).isdigit()
                return _seconds(float(value)) if is_number else _iso(value)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return _seconds(float(value))
        except (ValueError, OverflowError):
            pass
        raise InvalidFieldError(name, "seconds since 1970, or an ISO 8601 time")
    return None


def _seconds(number: float) -> float:
    if not 0 <= number < 1e14:  # NaN neither
        raise ValueError
    return number / 1000 if number > _MILLISECONDS else number


def _iso(text: str) -> float:
    """Return the seconds of an ISO 8601 time, of UTC if it names no zone."""
    found = datetime.fromisoformat(text.strip())
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
