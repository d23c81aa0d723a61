"""``/v1/responses``: the answer in a response, whether it may be stored, and its events.

Laws:
- A response repeats parts of its request, some of them neutral: they name the caller, not the
  answer. They are taken out before it is stored, and a hit repeats the parts of the new request.
- The last event of a stream carries the whole response. It is stored only if it agrees with the
  stream: every item that was done, and every text and argument that came in pieces.
- The events of a stored response come in OpenAI's order: the response begun, each item added empty,
  its parts one by one as a delta and whole, the item done, and last the whole response. They hold
  all of the response, and none comes before the event that it refers to.
"""

import hashlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.protocol import exact_json
from gateway.protocol.admission import CUT_OFF, is_json, lacks_json, unprintable
from gateway.protocol.endpoints.key_fields import (
    ARRAY,
    BOOLEAN,
    GENERATION,
    INTEGER,
    OBJECT,
    STRING,
    TOOLS,
    Field,
    Fields,
    Type,
    hosted_tools,
    keyed,
    when_given,
    when_true,
)
from gateway.protocol.endpoints.spec import Body, EndpointSpec, Question, Result, Streaming
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.streaming.decode import StreamedAnswer, UnknownShapeError, encode_event


def _input_refusal(items: Any) -> Reason | None:
    for item in items if isinstance(items, list) else ():
        match item:
            case {"type": "additional_tools", **rest}:
                if (reason := hosted_tools(rest.get("tools"))) is not None:
                    return reason
            case {"type": "item_reference"}:
                return Reason.CONVERSATION
            case {"type": str()} | {"role": _}:
                pass
            case _:  # a reference may come without its type
                return Reason.CONVERSATION
    return None


_INPUT = Type("one of a string or array of objects", (str, list))
_CONVERSATION = Type("one of a string or object", (str, dict))

_FIELDS: Fields = {
    **GENERATION,
    "store": Field(
        BOOLEAN, keyed=False, refusal=when_true(Reason.STORE_TRUE), absent=Reason.STORE_TRUE
    ),
    "input": Field(_INPUT, keyed=True, refusal=_input_refusal),
    "background": Field(BOOLEAN, keyed=False, refusal=when_true(Reason.BACKGROUND)),
    "conversation": Field(_CONVERSATION, keyed=True, refusal=when_given(Reason.CONVERSATION)),
    "previous_response_id": Field(STRING, keyed=True, refusal=when_given(Reason.PREVIOUS_RESPONSE)),
    "prompt": Field(None, keyed=True, refusal=when_given(Reason.STORED_PROMPT)),
    "tools": TOOLS,
    **keyed(INTEGER, "max_output_tokens", "max_tool_calls", "top_logprobs"),
    **keyed(STRING, "instructions"),
    **keyed(OBJECT, "reasoning", "text"),
    **keyed(ARRAY, "include"),
    **keyed(BOOLEAN, "parallel_tool_calls"),
    **keyed(None, "context_management", "moderation", "tool_choice", "truncation"),
}


def _check(body: Body) -> tuple[ClientError, ...]:
    given = body.get("input")
    for place, item in enumerate(given if isinstance(given, list) else ()):
        OBJECT.check(f"input[{place}]", item)
    return ()


def _find_question(body: Body) -> Question | Reason:
    """Find the input, where it is one text."""
    if body.get("tools") or body.get("functions"):
        return Reason.TOOLS
    text = body.get("input")
    if not isinstance(text, str):
        return Reason.NOT_TEXT
    return Question(text, {field: value for field, value in body.items() if field != "input"})


_UNNAMED: Mapping[str, Any] = {
    "metadata": {},
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
"""Neutral fields that a response repeats, with their values if the request had none."""

_FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}


def _anonymous(result: Result) -> Result | None:
    unnamed = {name: no for name, no in _UNNAMED.items() if result.get(name) not in (None, no)}
    return {**result, **unnamed} if unnamed else None


def _render(body: Body, _key: bytes, result: bytes) -> bytes:
    names = _names(body)
    if not names:
        return result
    response = exact_json.loads(result)
    return exact_json.dumps({name: names.get(name, value) for name, value in response.items()})


def _caller_key(key: bytes, body: Body) -> bytes:
    names = _names(body)
    if not names:
        return key
    return hashlib.sha256(key + exact_json.dumps(names, sort_keys=True)).digest()


def _names(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in _UNNAMED if body.get(name) is not None}


def _decline(body: Body, result: Any, finish_reasons: Container[str]) -> Reason | None:
    match result:
        case {"object": "response", "output": [*items], "status": str(status)}:
            pass
        case _:
            return Reason.UNKNOWN_SHAPE
    if result.get("error") is not None or status not in ("completed", "incomplete"):
        return Reason.UNCLEAN
    finish = _finish(status, result.get("incomplete_details"), items)
    if finish not in finish_reasons:
        return CUT_OFF.get(finish, Reason.FINISH_REASON)
    for item in items:
        reason = _decline_item(item, done=status == "completed")
        if reason is not None:
            return reason
    parts = (part for item in items if item["type"] == "message" for part in item["content"])
    texts = [part["text"] for part in parts if "text" in part]
    called = any(item["type"] in ("function_call", "custom_tool_call") for item in items)
    if not called and not any(texts):
        return Reason.EMPTY
    form = body.get("text")
    if texts and lacks_json(form.get("format") if form else None, "".join(texts)):
        return Reason.INVALID_JSON
    return unprintable({"response": result})  # as an event holds it


def _finish(status: str, details: Any, items: list[Any]) -> str:
    """Return the word that chat completions have for how it ended."""
    if status == "incomplete":
        reason = details.get("reason") if isinstance(details, dict) else None
        return _FINISH.get(str(reason), "length")
    calls = any(isinstance(item, dict) and item.get("type") == "function_call" for item in items)
    return "tool_calls" if calls else "stop"


def _decline_item(item: Any, *, done: bool) -> Reason | None:
    if isinstance(item, dict) and done and item.get("status") not in (None, "completed"):
        return Reason.UNCLEAN
    match item:
        case {"type": "message", "role": "assistant", "content": [*parts]}:
            return next((why for part in parts if (why := _decline_part(part))), None)
        case {"type": "reasoning", "summary": [*summary], **rest}:
            content = rest.get("content")
            known = all(map(_is_summary, summary)) and (
                content is None or (isinstance(content, list) and all(map(_is_reasoning, content)))
            )
            return None if known else Reason.UNKNOWN_SHAPE
        case {"type": "function_call", "name": str(), "call_id": str(), "arguments": str(given)}:
            return None if is_json(given) else Reason.INVALID_TOOL_CALL
        case {"type": "custom_tool_call", "name": str(), "call_id": str(), "input": str()}:
            return None
        case _:  # what only the upstream's own tools can have made
            return Reason.UNKNOWN_SHAPE


def _is_summary(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _is_reasoning(part: Any) -> bool:
    """Tell whether events can be made of a part of the reasoning: its type is in their names."""
    if not _is_summary(part) or not isinstance(part.get("annotations"), list | None):
        return False
    return isinstance(part.get("type"), str) and part["type"] != "refusal"


def _decline_part(part: Any) -> Reason | None:
    match part:
        case {"type": "output_text", "text": str(), **rest}:
            lists = isinstance(rest.get("annotations"), list | None)
            return None if lists else Reason.UNKNOWN_SHAPE
        case {"type": "refusal", "refusal": str()}:
            return Reason.REFUSAL
        case _:
            return Reason.UNKNOWN_SHAPE


_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})
_PIECES = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
"""Events that bring a piece of text, and the field of the item or its part where it ends up."""
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Items that are calls, and the field that is streamed."""


@dataclass(slots=True, kw_only=True)
class StreamedResponse(StreamedAnswer):
    """Follows the events of the Responses API."""

    _response: Any = None
    _items: dict[int, Any] = field(default_factory=dict)
    _pieces: dict[tuple[Any, Any, str], list[str]] = field(default_factory=dict)

    def _read(self, chunk: dict[str, Any], _raw: bytes, *, merges: bool) -> None:
        response, kind = chunk.get("response"), str(chunk.get("type"))
        if kind in _LAST:
            self.over = self.done = self.ended = True
            self._response = response
            if isinstance(response, dict):
                self.usage = response.get("usage")
        if not merges:
            return
        match chunk:
            case {"type": "response.output_item.done", "output_index": int(place), "item": item}:
                self._items[place] = item
            case {"output_index": int(place), "delta": str(piece)} if kind in _PIECES:
                part = chunk.get("content_index")
                if not isinstance(part, int | None):
                    raise UnknownShapeError("a piece of an unknown part")
                self._pieces.setdefault((place, part, _PIECES[kind]), []).append(piece)

    def _drop(self) -> None:
        self._items.clear()

    def result(self) -> dict[str, Any] | Reason:
        if self._unfit is not None:
            return self._unfit
        if not isinstance(self._response, dict):
            return Reason.UNCLEAN
        done = [self._items[place] for place in sorted(self._items)]
        # Some servers leave out of the last event the content of earlier events.
        response = {**self._response, "output": self._response.get("output") or done}
        output = response["output"]
        if not isinstance(output, list) or (done and done != output):
            return Reason.UNKNOWN_SHAPE
        for (place, part, name), pieces in self._pieces.items():
            if _text_at(output, place, part, name) != "".join(pieces):
                return Reason.UNKNOWN_SHAPE
        return response


def _text_at(output: list[Any], place: int, part: Any, field: str) -> Any:
    try:
        item = output[place]
        return item[field] if part is None else item["content"][part][field]
    except (LookupError, TypeError):
        return None


Events = Iterator[tuple[str, dict[str, Any]]]


def render_response(response: Result, *, include_usage: bool = True) -> bytes:
    """Return the whole event stream, always with its usage.

    Raises ValueError for a response that has not ended.
    """
    del include_usage
    if f"response.{response['status']}" not in _LAST:
        raise ValueError(f"a response that is {response['status']}")
    events = enumerate(_events(response))
    return b"".join(
        [
            encode_event(kind, {**event, "sequence_number": number})
            for number, (kind, event) in events
        ]
    )


def _events(response: Mapping[str, Any]) -> Events:
    start = {**response, "status": "in_progress", "output": []}
    start.pop("usage", None)
    for late in ("completed_at", "incomplete_details", "error"):
        if late in start:
            start[late] = None
    yield "response.created", {"response": start}
    yield "response.in_progress", {"response": start}
    for place, item in enumerate(response["output"]):
        where = {"output_index": place}
        yield "response.output_item.added", {**where, "item": _empty(item)}
        yield from _pieces(item, {"item_id": item.get("id") or f"item_{place}", **where})
        yield "response.output_item.done", {**where, "item": item}
    yield f"response.{response['status']}", {"response": response}


def _empty(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item in its announced form, before any of its content."""
    empty: dict[str, Any] = {**item}
    if "status" in empty:
        empty["status"] = "in_progress"
    if (name := _CALLS.get(item["type"])) is not None:
        empty[name] = ""
    elif item["type"] in ("message", "reasoning"):
        empty |= {name: [] for name in ("summary", "content") if item.get(name) is not None}
    return empty


def _pieces(item: Mapping[str, Any], where: dict[str, Any]) -> Events:
    kind = item["type"]
    if (name := _CALLS.get(kind)) is not None:
        text = item[name]
        called = {"name": item["name"]} if kind == "function_call" else {}
        yield f"response.{kind}_{name}.delta", {**where, "delta": text}
        yield f"response.{kind}_{name}.done", {**where, **called, name: text}
    if kind == "reasoning":
        for place, part in enumerate(item.get("summary") or ()):
            yield from _summary(part, {**where, "summary_index": place})
    if kind in ("message", "reasoning"):
        for place, part in enumerate(item.get("content") or ()):
            yield from _part(part, {**where, "content_index": place})


def _part(part: Mapping[str, Any], where: dict[str, Any]) -> Events:
    kind = part["type"]
    name = "refusal" if kind == "refusal" else "text"
    text = part[name]
    empty = {**part, name: ""}
    empty |= {lists: [] for lists in ("annotations", "logprobs") if part.get(lists) is not None}
    logprobs = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
    yield "response.content_part.added", {**where, "part": empty}
    yield f"response.{kind}.delta", {**where, "delta": text, **logprobs}
    for place, annotation in enumerate(part.get("annotations") or ()):
        noted = {"annotation_index": place, "annotation": annotation}
        yield "response.output_text.annotation.added", {**where, **noted}
    yield f"response.{kind}.done", {**where, name: text, **logprobs}
    yield "response.content_part.done", {**where, "part": part}


def _summary(part: Mapping[str, Any], where: dict[str, Any]) -> Events:
    name = "response.reasoning_summary_"
    yield f"{name}part.added", {**where, "part": {**part, "text": ""}}
    yield f"{name}text.delta", {**where, "delta": part["text"]}
    yield f"{name}text.done", {**where, "text": part["text"]}
    yield f"{name}part.done", {**where, "part": part}


SPEC = EndpointSpec(
    fields=_FIELDS,
    check=_check,
    template_field="prompt",
    recognises=lambda body: "input" in body,
    operation="chat",
    prompt_fields=("tools", "instructions", "input"),
    question_field="input",
    text_type="input_text",
    instructions="instructions",
    find_question=_find_question,
    decline=_decline,
    anonymous=_anonymous,
    caller_key=_caller_key,
    render=_render,
    streaming=Streaming(render_response, StreamedResponse, usage_option=False),
    keeps_by_id=True,
)
