"""From a stored response to the events by which the Responses API streams one.

As OpenAI sends them: the response begun, each item added empty, its parts one by one as a delta
and whole, the item done, and last the whole response. Law: the events hold all that the response
does, and none comes before what it speaks of.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.core import exact_json, sse

_LAST = ("completed", "incomplete", "failed")
Events = Iterator[tuple[str, dict[str, Any]]]


def render_response(response: Mapping[str, Any]) -> bytes:
    """Return the whole event stream. Raises ValueError for a response that has not ended."""
    if response["status"] not in _LAST:
        raise ValueError(f"a response that is {response['status']}")
    events = []
    for number, (kind, event) in enumerate(_events(response)):
        numbered = {"type": kind, **event, "sequence_number": number}
        events.append(b"event: " + kind.encode() + b"\n" + sse.encode(exact_json.dumps(numbered)))
    return b"".join(events)


def _events(response: Mapping[str, Any]) -> Events:
    begun = {**response, "status": "in_progress", "output": []}
    begun.pop("usage", None)
    for told_last in ("completed_at", "incomplete_details", "error"):
        if told_last in begun:
            begun[told_last] = None
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for place, item in enumerate(response["output"]):
        where = {"output_index": place}
        yield "response.output_item.added", {**where, "item": _emptied(item)}
        yield from _pieces(item, {"item_id": item.get("id") or f"item_{place}", **where})
        yield "response.output_item.done", {**where, "item": item}
    yield f"response.{response['status']}", {"response": response}


def _emptied(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as it is announced, before anything of it has come."""
    empty: dict[str, Any] = {**item}
    if "status" in empty:
        empty["status"] = "in_progress"
    match item["type"]:
        case "message":
            empty["content"] = []
        case "reasoning":
            empty |= {name: [] for name in ("summary", "content") if item.get(name) is not None}
        case "function_call":
            empty["arguments"] = ""
        case "custom_tool_call":
            empty["input"] = ""
    return empty


def _pieces(item: Mapping[str, Any], where: dict[str, Any]) -> Events:
    match item["type"]:
        case "message":
            for place, part in enumerate(item["content"]):
                yield from _part(part, {**where, "content_index": place})
        case "reasoning":
            for place, part in enumerate(item.get("summary") or ()):
                yield from _summary(part, {**where, "summary_index": place})
            for place, part in enumerate(item.get("content") or ()):
                yield from _part(part, {**where, "content_index": place})
        case "function_call":
            given = item["arguments"]
            yield "response.function_call_arguments.delta", {**where, "delta": given}
            told = {"name": item["name"], "arguments": given}
            yield "response.function_call_arguments.done", {**where, **told}
        case "custom_tool_call":
            yield "response.custom_tool_call_input.delta", {**where, "delta": item["input"]}
            yield "response.custom_tool_call_input.done", {**where, "input": item["input"]}


def _part(part: Mapping[str, Any], where: dict[str, Any]) -> Events:
    kind = part["type"]
    name = "refusal" if kind == "refusal" else "text"
    text = part[name]
    empty = {**part, name: ""}
    empty |= {lists: [] for lists in ("annotations", "logprobs") if part.get(lists) is not None}
    told = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
    yield "response.content_part.added", {**where, "part": empty}
    yield f"response.{kind}.delta", {**where, "delta": text, **told}
    for place, annotation in enumerate(part.get("annotations") or ()):
        noted = {"annotation_index": place, "annotation": annotation}
        yield "response.output_text.annotation.added", {**where, **noted}
    yield f"response.{kind}.done", {**where, name: text, **told}
    yield "response.content_part.done", {**where, "part": part}


def _summary(part: Mapping[str, Any], where: dict[str, Any]) -> Events:
    name = "response.reasoning_summary_"
    yield f"{name}part.added", {**where, "part": {**part, "text": ""}}
    yield f"{name}text.delta", {**where, "delta": part["text"]}
    yield f"{name}text.done", {**where, "text": part["text"]}
    yield f"{name}part.done", {**where, "part": part}
