"""``/v1/chat/completions``."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from gateway.protocol.endpoints.key_fields import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    OBJECTS,
    SAMPLING,
    STRING,
    TOOLS,
    Field,
    Fields,
    Type,
    keyed,
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
from gateway.protocol.storable import decline_choices, is_json
from gateway.protocol.streaming.assemble_choices import StreamedChoices
from gateway.protocol.streaming.render_choices import ChoiceForm, last_chunk, piece, render_choices

_FIELDS: Fields = {
    **SAMPLING,
    **keyed(OBJECTS, "messages", "functions"),
    **keyed(BOOLEAN, "logprobs", "parallel_tool_calls"),
    **keyed(INTEGER, "max_completion_tokens", "top_logprobs"),
    **keyed(OBJECT, "response_format"),
    **keyed(None, "audio", "function_call", "modalities", "moderation", "prediction"),
    **keyed(None, "reasoning_effort", "tool_choice", "verbosity"),
    "tools": TOOLS,
    "web_search_options": Field(None, keyed=True, refusal=when_given(Reason.WEB_SEARCH)),
}

_TOKENS_INSTEAD = ("input_ids", "input_embeds", "prompt_embeds")
"""Fields that SGLang and vLLM accept in place of messages."""
_CONTENT = Type("one of a string or array of objects", (str, list))


def _check(body: Body) -> Iterator[ClientError]:
    messages = body.get("messages")
    if messages is None:
        error = missing("messages")
        if not any(name in body for name in _TOKENS_INSTEAD):
            raise error
        yield error
        return
    if not messages:
        raise empty_array("messages")
    for position, message in enumerate(messages):
        if not _is_plain(message):
            yield from _check_message(f"messages[{position}]", message)


def _is_plain(message: Any) -> bool:
    """Recognise the usual form of a message, without naming its parts for an error."""
    return (
        type(message) is dict
        and type(message.get("role")) is str
        and type(message.get("content")) is str
    )


def _check_message(where: str, message: Any) -> Iterator[ClientError]:
    OBJECT.check(where, message)
    require(message, "role", where)
    STRING.check(f"{where}.role", message["role"])
    content = message.get("content")
    if content is not None:
        _CONTENT.check(f"{where}.content", content)
        if isinstance(content, list):
            for index, part in enumerate(content):
                if isinstance(part, str):
                    yield OBJECT.error(f"{where}.content[{index}]", part)
                else:
                    OBJECT.check(f"{where}.content[{index}]", part)


_PROSE = ("text", "refusal")
"""Types of content parts that are text."""
_TOOL_ROLES = frozenset({"tool", "function"})
_INSTRUCTING = frozenset({"system", "developer"})


def _find_question(body: Body) -> Question | Reason:
    """Find the last message, where it is the user's and plain text.

    With tools the answer may be an action. What tools returned, images, sounds and files hold the
    particulars that a question is about, wherever they stand.
    """
    if body.get("tools") or body.get("functions"):
        return Reason.TOOLS
    *earlier, last = body["messages"]
    if last["role"] in _TOOL_ROLES or any(each["role"] in _TOOL_ROLES for each in earlier):
        return Reason.TOOL_RESULTS
    if last["role"] != "user":
        return Reason.LAST_TURN
    text = _single_text(last.get("content"))
    if text is None or any(map(_is_more_than_text, earlier)):
        return Reason.NOT_TEXT
    bare = {field: value for field, value in last.items() if field != "content"}
    follows = any(message["role"] not in _INSTRUCTING for message in earlier)
    return Question(text, {**body, "messages": [*earlier, bare]}, follows)


def _single_text(content: Any) -> str | None:
    """Return the text of a message's content, or None where it is more than one piece of text."""
    match content:
        case str():
            return content
        case [{"type": "text", "text": str(text), **rest}] if not rest:
            return text
        case _:
            return None


def _is_more_than_text(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") not in _PROSE for part in content)


def _decline_choice(body: Body, choice: dict[str, Any]) -> Reason | None:
    message = choice.get("message")
    if not isinstance(message, dict) or message.get("audio") is not None:
        return Reason.UNKNOWN_SHAPE
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        return Reason.UNKNOWN_SHAPE
    if message.get("refusal"):
        return Reason.REFUSAL
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return Reason.UNKNOWN_SHAPE
    for call in calls or ():
        reason = _decline_call(body, call)
        if reason is not None:
            return reason
    function = message.get("function_call")
    if function is not None and (reason := _decline_function(body, function)) is not None:
        return reason
    promised = {"tool_calls": calls, "function_call": function}
    if not promised.get(choice["finish_reason"], True):
        return Reason.INVALID_TOOL_CALL
    if content or calls or function is not None:
        return None
    return Reason.EMPTY if "content" in message or "refusal" in message else Reason.UNKNOWN_SHAPE


def _decline_call(body: Body, call: Any) -> Reason | None:
    match call:
        case {"type": "custom", "custom": {"name": str(), "input": str()}}:
            return None  # free text, whatever it holds
        case {"type": "function", "function": function}:
            return _decline_function(body, function)
        case _:
            return Reason.INVALID_TOOL_CALL


def _decline_function(body: Body, function: Any) -> Reason | None:
    match function:
        case {"name": str(name), "arguments": str(arguments)} if name and is_json(arguments):
            return None
        case {"name": str(name), "arguments": ""} if name and _needs_no_arguments(body, name):
            return None
        case _:
            return Reason.INVALID_TOOL_CALL


def _needs_no_arguments(body: Body, name: str) -> bool:
    """Tell whether the request says so of one of its functions: servers then send none."""
    tools = [tool.get("function") for tool in body.get("tools") or () if isinstance(tool, dict)]
    for function in (*tools, *(body.get("functions") or ())):
        match function:
            case {"name": str(known), "parameters": {"required": [_, *_]}} if known == name:
                return False
            case {"name": str(known)} if known == name:
                return True
    return False


def _pieces(choice: dict[str, Any]) -> Iterator[Result]:
    message = choice["message"]
    opening: dict[str, Any] = {name: None for name, value in message.items() if value is None}
    if message.get("content") is not None:
        opening["content"] = ""
    opening["role"] = message.get("role", "assistant")
    delta = {name: value for name, value in message.items() if name != "role" and value is not None}
    if delta.get("tool_calls"):
        calls = delta["tool_calls"]
        delta["tool_calls"] = [{**call, "index": place} for place, call in enumerate(calls)]
    yield piece(choice, delta=opening)
    yield piece(choice, delta=delta, logprobs=choice.get("logprobs"))
    yield piece(choice, delta={}, **last_chunk(choice))


_FORM = ChoiceForm(
    "chat.completion",
    "chat.completion.chunk",
    {
        "logprobs": None,
        "finish_reason": None,
        "message": {"role": "assistant", "content": None, "refusal": None},
    },
    _pieces,
)

SPEC = EndpointSpec(
    fields=_FIELDS,
    check=_check,
    recognises=lambda body: "messages" in body,
    operation="chat",
    prompt_fields=("tools", "functions", "documents", "messages"),
    question_field="messages",
    text_type="text",
    find_question=_find_question,
    decline=partial(
        decline_choices,
        decline_choice=_decline_choice,
        text=lambda choice: choice["message"].get("content"),
    ),
    streaming=Streaming(
        partial(render_choices, _FORM), partial(StreamedChoices, form=_FORM), usage_option=True
    ),
    takes_cache_control=True,
)
