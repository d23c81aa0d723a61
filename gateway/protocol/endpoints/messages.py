"""``/v1/messages`` and ``/v1/messages/count_tokens``, Anthropic's form of a conversation.

Laws:
- A message is stored in its plain form, whether it came so or as events. Its events follow from it:
  the message begins, each block comes as one piece, and the end has the stop reason and the usage.
- The end of a stream counts for nothing unless every block in it was begun and ended.
- The headers that choose a version of the API are part of the key.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar

import orjson

from gateway.protocol import exact_json
from gateway.protocol.admission import CUT_OFF, is_json, unprintable
from gateway.protocol.endpoints.key_fields import (
    ARRAY,
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    OBJECTS,
    STRING,
    Field,
    Fields,
    Type,
    keyed,
    neutral,
    when_given,
)
from gateway.protocol.endpoints.spec import (
    Body,
    EndpointSpec,
    Question,
    Result,
    Streaming,
    empty_array,
    missing,
    require,
)
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.streaming.decode import (
    Pattern,
    StreamedAnswer,
    UnknownShapeError,
    encode_event,
    pattern_of,
)

VERSION_HEADERS = ("anthropic-version", "anthropic-beta")
"""Headers that choose a version of the API."""

_CLIENT_TOOLS = ("bash_", "text_editor_", "computer_", "browser_", "memory_")
"""How the types of Anthropic's own tools begin that the client runs."""


def _hosted_tools(tools: Any) -> Reason | None:
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in (None, "custom"):
            continue
        if not isinstance(kind, str) or not kind.startswith(_CLIENT_TOOLS):
            searches = isinstance(kind, str) and kind.startswith("web_")
            return Reason.WEB_SEARCH if searches else Reason.HOSTED_TOOLS
    return None


def _stored_files(content: Any) -> Reason | None:
    """Refuse content that names a file which Anthropic stores, wherever it is nested."""
    stack = [content]
    while stack:
        each = stack.pop()
        if isinstance(each, list):
            stack += each
        elif isinstance(each, dict):
            if each.get("type") == "container_upload":
                return Reason.CONVERSATION
            if isinstance(source := each.get("source"), dict) and source.get("type") == "file":
                return Reason.CONVERSATION
            if type(content := each.get("content")) is not str:
                stack.append(content)
            if source is not None:
                stack.append(source)
    return None


_CONTENT = Type("one of a string or array of objects", (str, list))

_PROMPT: Fields = {
    **keyed(STRING, "model"),
    "messages": Field(OBJECTS, keyed=True, refusal=_stored_files),
    **keyed(_CONTENT, "system"),
    **keyed(OBJECT, "thinking", "tool_choice", "output_config", "context_management"),
    **keyed(None, "speed"),
    **neutral(None, "cache_control"),
    "tools": Field(OBJECTS, keyed=True, refusal=_hosted_tools),
    "mcp_servers": Field(
        None, keyed=True, refusal=lambda given: Reason.HOSTED_TOOLS if given else None
    ),
}

_FIELDS: Fields = {
    **_PROMPT,
    **keyed(INTEGER, "max_tokens", "top_k"),
    **keyed(NUMBER, "temperature", "top_p"),
    **keyed(ARRAY, "stop_sequences"),
    **keyed(None, "diagnostics", "inference_geo"),
    **neutral(BOOLEAN, "stream"),
    **neutral(OBJECT, "metadata"),
    **neutral(None, "service_tier"),
    "container": Field(None, keyed=True, refusal=when_given(Reason.CONVERSATION)),
    "thread": Field(None, keyed=True, refusal=when_given(Reason.CONVERSATION)),
}


def _check(body: Body) -> Iterator[ClientError]:
    if body.get("max_tokens") is None:
        yield missing("max_tokens")
    yield from _check_prompt(body)


def _check_prompt(body: Body) -> Iterator[ClientError]:
    require(body, "messages")
    if not body["messages"]:
        raise empty_array("messages")
    for at, message in enumerate(body["messages"]):
        content = message.get("content") if type(message) is dict else None
        if type(content) not in _CONTENT.types or type(message.get("role")) is not str:
            where = f"messages[{at}]"
            OBJECT.check(where, message)
            require(message, "role", where)
            STRING.check(f"{where}.role", message["role"])
            require(message, "content", where)
            _CONTENT.check(f"{where}.content", content)
        yield from _check_blocks(f"messages[{at}].content", content)
    yield from _check_blocks("system", body.get("system"))
    yield from _check_blocks("tools", body.get("tools"))


def _check_blocks(where: str, blocks: Any) -> Iterator[ClientError]:
    for at, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if not isinstance(block, dict):
            yield OBJECT.error(f"{where}[{at}]", block)
        elif not isinstance(block.get("type", ""), (str, NoneType)):
            yield STRING.error(f"{where}[{at}].type", block["type"])


def _find_question(body: Body) -> Question | Reason:
    """Find the last turn, where it is the user's and plain text, as for chat completions."""
    if body.get("tools"):
        return Reason.TOOLS
    *earlier, last = body["messages"]
    kinds = {
        block.get("type")
        for turn in (*earlier, last, {"content": body.get("system")})
        if isinstance(turn["content"], list)
        for block in turn["content"]
    }
    if not kinds.isdisjoint({"tool_use", "tool_result"}):
        return Reason.TOOL_RESULTS
    if last["role"] != "user":
        return Reason.LAST_TURN
    match last["content"]:
        case str(text):
            pass
        case [{"type": "text", "text": str(text), **rest}] if not rest:
            pass
        case _:
            return Reason.NOT_TEXT
    if kinds - {"text"}:
        return Reason.NOT_TEXT
    bare = {name: value for name, value in last.items() if name != "content"}
    follows = any(turn["role"] != "system" for turn in earlier)
    return Question(text, {**body, "messages": [*earlier, bare]}, follows)


_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
"""The words of policies for how an answer ended."""


def _decline(body: Body, result: Any, finish_reasons: Container[str]) -> Reason | None:
    match result:
        case {
            "type": "message",
            "role": "assistant",
            "content": [*blocks],
            "stop_reason": stop,
        } if (
            result.get("container") is None  # it is there only if Anthropic's tools have run
        ):
            pass
        case _:
            return Reason.UNKNOWN_SHAPE
    if (reason := _decline_end(result, finish_reasons)) is not None:
        return reason
    for block in blocks:
        if (reason := _decline_block(block)) is not None:
            return reason
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    calls = any(block["type"] == "tool_use" for block in blocks)
    if stop == "tool_use" and not calls:
        return Reason.INVALID_TOOL_CALL
    if not calls and not any(texts):
        return Reason.EMPTY
    match body.get("output_config"):
        case {"format": {"type": "json_schema"}} if not calls and not is_json("".join(texts)):
            return Reason.INVALID_JSON
    return unprintable({"message": {"content": result}})  # as an event holds it, and deeper


def _decline_end(message: Mapping[str, Any], finish_reasons: Container[str]) -> Reason | None:
    stop = message["stop_reason"]
    if stop == "refusal":
        return Reason.REFUSAL
    if "finish_reason" in message:  # the word of a server of chat completions: it is not known
        return Reason.FINISH_REASON
    if message.get("invalid_arguments"):
        return Reason.INVALID_TOOL_CALL
    finish = _FINISH.get(stop, "") if isinstance(stop, str) else ""
    if not finish or finish not in finish_reasons:
        return CUT_OFF.get(finish, Reason.FINISH_REASON)
    return None


def _decline_block(block: Any) -> Reason | None:
    match block:
        case {"type": "text", "text": str(), **rest}:
            lists = isinstance(rest.get("citations"), list | None)
            return None if lists else Reason.UNKNOWN_SHAPE
        case {"type": "thinking", "thinking": str(), **rest}:
            signed = isinstance(rest.get("signature"), str | None)
            return None if signed else Reason.UNKNOWN_SHAPE
        case {"type": "redacted_thinking"}:
            return None
        case {"type": "tool_use", "id": str(), "name": str(), "input": dict()}:
            return None
        case {"type": "tool_use"}:
            return Reason.INVALID_TOOL_CALL
        case _:  # what only Anthropic's own tools can have made
            return Reason.UNKNOWN_SHAPE


_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""Deltas that bring a piece of text, and the field that has it."""


_DELTA = "content_block_delta"
_OF_DELTA = 3
"""Fields of such an event: its type, the index and the delta."""


class _Pieces(list[str]): ...


@dataclass(slots=True, kw_only=True)
class StreamedMessage(StreamedAnswer):
    """Follows the events of a message."""

    strips_usage: ClassVar[bool] = False

    _message: dict[str, Any] | None = None
    _blocks: list[dict[str, Any]] = field(default_factory=list)
    _open: int | None = None
    """The index of the block that has not ended."""
    _stopped: bool = False
    """Whether the message has its stop reason."""

    def _read(self, chunk: dict[str, Any], raw: bytes, *, merges: bool) -> None:
        kind = chunk.get("type")
        if kind == "message_stop":
            self.over = self.done = self.ended = True
        elif kind in ("message_start", "message_delta"):
            holder = chunk.get("message") if kind == "message_start" else chunk
            given = holder.get("usage") if isinstance(holder, dict) else None
            if isinstance(given, dict):
                known = self.usage if isinstance(self.usage, dict) else {}
                self.usage = known | {name: n for name, n in given.items() if n is not None}
        if merges:
            self._merge(chunk)
        self._decoder.pattern = self._find_pattern(chunk, raw, merges=merges)

    def _find_pattern(self, chunk: dict[str, Any], raw: bytes, *, merges: bool) -> Pattern | None:
        """Return what the next event may be like, if it may only add to the text of one block."""
        match chunk:
            case {"index": int(at), "delta": {"type": "text_delta", "text": str(text), **rest}} if (
                text and not rest and len(chunk) == _OF_DELTA and chunk["type"] == _DELTA
            ):
                if b"\\" not in raw and raw.count(b'"text":') == 1:
                    texts = self._blocks[at]["text"] if merges else []
                    return pattern_of(b"text", text, raw, texts)
        return None

    def _merge(self, chunk: dict[str, Any]) -> None:
        match chunk:
            case {"type": "message_start", "message": {"content": []} as message} if (
                self._message is None
            ):
                self._message = dict(message)
            case {"type": "content_block_start", "index": int(at), "content_block": dict(block)}:
                if at != len(self._blocks) or self._open is not None:
                    raise UnknownShapeError("a block out of order")
                self._open = at
                self._blocks.append({**block})
            case {"type": "content_block_delta", "index": int(at), "delta": dict(delta)}:
                if at != self._open:
                    raise UnknownShapeError("a piece of a block that is not open")
                _merge_delta(self._blocks[at], delta)
            case {"type": "content_block_stop", "index": int(at)} if at == self._open:
                self._open = None
            case {"type": "message_delta", "delta": dict(delta), **rest}:
                if self._message is None or self._stopped:
                    raise UnknownShapeError("an end without a message")
                self._stopped = delta.get("stop_reason") is not None
                more = {name: value for name, value in rest.items() if name != "usage"}
                self._message |= {n: v for n, v in (delta | more).items() if v is not None}
            case {"type": "ping" | "message_stop"}:
                pass
            case _:
                raise UnknownShapeError("an event that is not known")

    def _drop(self) -> None:
        self._blocks.clear()

    def result(self) -> dict[str, Any] | Reason:
        if self._unfit is not None:
            return self._unfit
        if self._message is None or not self._stopped or self._open is not None:
            return Reason.UNCLEAN
        content = []
        for block in self._blocks:
            whole = {n: "".join(v) if isinstance(v, _Pieces) else v for n, v in block.items()}
            written = whole.pop("partial_json", None)
            if written:
                try:
                    whole["input"] = exact_json.loads(written.encode())
                except (orjson.JSONDecodeError, UnicodeEncodeError):
                    return Reason.INVALID_TOOL_CALL
            content.append(whole)
        return {**self._message, "content": content, "usage": self.usage}


def _merge_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta:
        case {"type": "citations_delta", "citation": citation}:
            block["citations"] = [*(block.get("citations") or ()), citation]
        case {"type": str(kind)} if kind in _PIECES and isinstance(delta.get(_PIECES[kind]), str):
            name = _PIECES[kind]
            known = block.get(name)
            if not isinstance(known, _Pieces):
                block[name] = known = _Pieces([known] if isinstance(known, str) else ())
            known.append(delta[name])
        case _:
            raise UnknownShapeError("a delta that is not known")


def render_message(message: Result, *, include_usage: bool = True) -> bytes:
    """Return the whole event stream of a message, always with its usage."""
    del include_usage
    return b"".join([encode_event(kind, event) for kind, event in _events(message)])


def _events(message: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    usage = message.get("usage") or {}
    end = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    if message.get("stop_details") is not None:
        end["stop_details"] = message["stop_details"]
    start = {**message, "content": [], **dict.fromkeys(end), "usage": {**usage, "output_tokens": 0}}
    yield "message_start", {"message": start}
    for at, block in enumerate(message["content"]):
        where = {"index": at}
        yield "content_block_start", {**where, "content_block": _empty(block)}
        for delta in _deltas(block):
            yield "content_block_delta", {**where, "delta": delta}
        yield "content_block_stop", where
    yield "message_delta", {"delta": end, "usage": usage}
    yield "message_stop", {}


_EMPTY: Mapping[str, Mapping[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def _empty(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block as it is announced, before any of its content."""
    empty = {n: v for n, v in _EMPTY.get(block["type"], {}).items() if n in block}
    if block.get("citations"):
        empty["citations"] = []
    return {**block, **empty}


def _deltas(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    match block:
        case {"type": "text", "text": text}:
            if text:
                yield {"type": "text_delta", "text": text}
            for citation in block.get("citations") or ():
                yield {"type": "citations_delta", "citation": citation}
        case {"type": "thinking", "thinking": text}:
            if text:
                yield {"type": "thinking_delta", "thinking": text}
            if block.get("signature"):
                yield {"type": "signature_delta", "signature": block["signature"]}
        case {"type": "tool_use", "input": given}:
            yield {"type": "input_json_delta", "partial_json": exact_json.dumps(given).decode()}


def _end_users(body: Body) -> Iterator[Any]:
    match body.get("metadata"):
        case {"user_id": str(name)}:
            yield name


def _recognises(body: Body) -> bool:
    return "messages" in body and ("system" in body or "stop_sequences" in body)


SPEC = EndpointSpec(
    fields=_FIELDS,
    check=_check,
    recognises=_recognises,
    operation="chat",
    prompt_fields=("tools", "system", "messages"),
    question_field="messages",
    text_type="text",
    instructions="system",
    find_question=_find_question,
    decline=_decline,
    end_users=_end_users,
    streaming=Streaming(render_message, StreamedMessage, usage_option=False, bytes_a_token=120),
    takes_cache_control=True,
    keyed_headers=VERSION_HEADERS,
    is_anthropic=True,
    has_pings=True,
)


def _decline_count(_body: Body, result: Any, _finish_reasons: Container[str]) -> Reason | None:
    match result:
        case {"input_tokens": int(), **rest} if not rest.get("estimated"):
            return None
        case {"input_tokens": int()}:
            return Reason.UNCLEAN  # the upstream's own count may be there next time
        case _:
            return Reason.UNKNOWN_SHAPE


COUNT_SPEC = EndpointSpec(
    fields=_PROMPT,
    check=_check_prompt,
    recognises=lambda _: False,
    operation="count_tokens",
    prompt_fields=("tools", "system", "messages"),
    question_field="messages",
    decline=_decline_count,
    end_users=_end_users,
    generates=False,
    keyed_headers=VERSION_HEADERS,
    is_anthropic=True,
)
