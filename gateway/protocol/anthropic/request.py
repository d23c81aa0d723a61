"""A request to ``/v1/messages`` as a request for chat completions.

Laws:
- What the model reads is all there, or the request is refused with its place. Only marks for a
  prefix cache and settings of Anthropic's own service are left out.
- Results of tools follow their calls at once, as servers require: before the rest of their turn.
- The same request gives the same bytes, so that prefix caches hit.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.protocol import exact_json
from gateway.protocol.anthropic.calls import EXTRAS, split_id

Body = dict[str, Any]

_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
"""Fields with the same name and meaning."""

_LEFT_OUT = frozenset(
    {"messages", "system", "stop_sequences", "tools", "tool_choice", "output_config"}
    | {"thinking", "metadata", "service_tier", "cache_control", "context_management"}
    | {"diagnostics", "inference_geo", "speed", "anthropic_version", "anthropic_beta"}
    # Messages has neither. Usage that is not sent, and answers that are not read, would cost a
    # holder of a budget nothing.
    | {"stream_options", "n", "best_of"}
)
"""Fields that are translated one by one, or that one of the two APIs does not have."""

_ONLY_ANTHROPICS = ("container", "mcp_servers", "thread")
"""Fields for what runs on Anthropic's servers."""

_COMPLETION_TOKENS = re.compile(r"(?:^|/)(?:o[1-9]|gpt-[5-9])")
"""OpenAI's reasoning models refuse ``max_tokens``."""

_BILLING = "x-anthropic-billing-header"
"""How a block of Claude Code begins that differs for each request, and is not for the model."""

MAY_REFUSE = ("reasoning_effort", "add_generation_prompt", "continue_final_message")
"""Fields of a translation that not every server takes."""

THOUGHTS = ("reasoning", "reasoning_content")
"""The names of the thinking in a message: vLLM reads the first, most others the second."""

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_BUDGETS = ((4_096, "low"), (16_384, "medium"))
"""Below so many tokens of thinking, the effort."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class UntranslatableError(ValueError):
    """A part of a request has no counterpart; ``param`` is its place."""

    def __init__(self, what: str, param: str) -> None:
        super().__init__(
            f"{param}: {what} cannot be sent to this model: its server speaks chat completions, "
            "which have nothing like it."
        )
        self.param = param


def to_chat(body: Body) -> Body:
    """Return the body for ``/v1/chat/completions``. Raises UntranslatableError.

    Fields that Anthropic does not have are passed on: some servers take more.
    """
    for name in _ONLY_ANTHROPICS:
        if body.get(name):
            raise UntranslatableError(name, name)
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    if _COMPLETION_TOKENS.search(str(chat.get("model", ""))) and "max_tokens" in chat:
        chat["max_completion_tokens"] = chat.pop("max_tokens")
    chat["messages"] = _folded(_system(body.get("system")), _messages(body.get("messages")))
    if is_prefill(chat["messages"]):
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if body.get("tools"):
        chat["tools"] = [_tool(f"tools[{at}]", each) for at, each in _items("tools", body)]
        chat |= _tool_choice(body.get("tool_choice"))
    chat |= _output_form(body.get("output_config"))
    if (effort := _effort(body)) is not None:
        chat["reasoning_effort"] = effort
    chat |= {name: body[name] for name in MAY_REFUSE if name in body}  # the client's own word
    others = body.keys() - _LEFT_OUT - chat.keys() - {"max_tokens", *_ONLY_ANTHROPICS}
    chat |= {name: body[name] for name in body if name in others}
    return chat


def _items(name: str, body: Body) -> Iterator[tuple[int, Body]]:
    values = body.get(name)
    if not isinstance(values, list):
        raise UntranslatableError("a value that is no list", name)
    for at, value in enumerate(values):
        if not isinstance(value, dict):
            raise UntranslatableError("a value that is no object", f"{name}[{at}]")
        yield at, value


def is_prefill(messages: list[Body]) -> bool:
    """Tell whether the last turn is the beginning of the answer, which the model is to continue."""
    match messages[-1:]:
        case [{"role": "assistant", "content": str(text), **rest}]:
            return bool(text) and "tool_calls" not in rest
        case _:
            return False


def _effort(body: Body) -> str | None:
    match body:
        case {"output_config": {"effort": str(effort)}}:
            return _EFFORTS.get(effort)
        case {"thinking": {"type": "enabled", "budget_tokens": int(budget)}}:
            return next((effort for below, effort in _BUDGETS if budget < below), "high")
        case _:
            return None


def _system(system: Any) -> list[str]:
    texts = [] if system is None else _texts("system", system)
    return [text for text in texts if not text.startswith(_BILLING)]


def _folded(system: list[str], turns: Iterator[Body]) -> list[Body]:
    """Return all messages, with one system message at most, and that the first.

    Many templates refuse another. The text of a later system turn goes to the end of the user's
    turn before it, else to the beginning of the one after it.
    """
    messages: list[Body] = []
    waiting: list[str] = []
    for turn in turns:
        role = turn["role"]
        if role == "system":
            if not messages:
                system.append(turn["content"])
            elif messages[-1]["role"] == "user" and not waiting:
                messages[-1]["content"] = _joined(messages[-1]["content"], turn["content"])
            else:
                waiting.append(turn["content"])
            continue
        if waiting and role != "tool":  # results of tools follow their calls at once
            text = "\n\n".join(waiting)
            waiting.clear()
            if role == "user":
                turn["content"] = _joined(text, turn["content"])
            else:
                messages.append({"role": "user", "content": text})
        messages.append(turn)
    if waiting:
        messages.append({"role": "user", "content": "\n\n".join(waiting)})
    if system:
        messages.insert(0, {"role": "system", "content": "\n\n".join(system)})
    return messages


def _joined(first: Any, second: Any) -> Any:
    """Return the content of two turns as the content of one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = ([{"type": "text", "text": c}] if isinstance(c, str) else c for c in (first, second))
    return [part for of in parts for part in of]


def _texts(where: str, content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for at, block in _items("content", {"content": content}):
        match block:
            case {"type": "text", "text": str(text)}:
                yield text
            case _:
                raise _odd(f"{where}[{at}]", block)


def _odd(where: str, block: Mapping[str, Any]) -> UntranslatableError:
    kind = block.get("type")
    what = f"a block of type {kind[:64]!r}" if isinstance(kind, str) else "a block without a type"
    return UntranslatableError(what, where)


def _messages(messages: Any) -> Iterator[Body]:
    for at, message in _items("messages", {"messages": messages}):
        where, content = f"messages[{at}].content", message.get("content")
        match message.get("role"):
            case "user":
                yield from _user(where, content)
            case "assistant":
                yield _assistant(where, content)
            case "system":
                yield {"role": "system", "content": "\n\n".join(_texts(where, content))}
            case _:
                raise UntranslatableError("a role that is not known", f"messages[{at}].role")


def _user(where: str, content: Any) -> Iterator[Body]:
    if isinstance(content, str):
        yield {"role": "user", "content": content}
        return
    parts: list[Body] = []
    for at, block in _items("content", {"content": content}):
        if block.get("type") == "tool_result":
            text, images = _tool_result(f"{where}[{at}]", block)
            call, _ = split_id(block.get("tool_use_id"))
            yield {"role": "tool", "tool_call_id": call, "content": text}
            parts += images
        else:
            parts += _parts(f"{where}[{at}]", block)
    match parts:
        case []:
            return
        case [{"type": "text", "text": text}]:
            yield {"role": "user", "content": text}
        case _:
            yield {"role": "user", "content": parts}


def _tool_result(where: str, block: Body) -> tuple[str, list[Body]]:
    content = block.get("content")
    texts, others = [], list[Body]()
    if isinstance(content, str):
        texts.append(content)
    elif content is not None:
        for at, each in _items("content", {"content": content}):
            for part in _parts(f"{where}.content[{at}]", each):
                if part["type"] == "text":
                    texts.append(part["text"])
                else:
                    others.append(part)
    if block.get("is_error") is True:
        texts.insert(0, "Error:")
    if others:
        name, _ = split_id(block.get("tool_use_id"))
        texts.append("(what the tool returned beside text is in the next message)")
        others.insert(0, {"type": "text", "text": f"Returned by the tool call {name}:"})
    return "\n".join(texts), others


def _parts(where: str, block: Body) -> Iterator[Body]:
    match block:
        case {"type": "text", "text": str(text)}:
            yield {"type": "text", "text": text}
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": data}}:
            yield {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            yield {"type": "image_url", "image_url": {"url": url}}
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            yield {"type": "text", "text": _titled(block, text)}
        case {"type": "document", "source": {"type": "content", "content": content}}:
            yield {"type": "text", "text": _titled(block, "\n".join(_texts(where, content)))}
        case {"type": "document", "source": {"type": "base64", "media_type": str(kind), "data": d}}:
            named = block.get("title") or "document.pdf"
            file = {"filename": named, "file_data": f"data:{kind};base64,{d}"}
            yield {"type": "file", "file": file}
        case {"type": "search_result", "source": str(source), "content": content}:
            yield {
                "type": "text",
                "text": _titled(block, "\n".join(_texts(where, content)), source),
            }
        case _:
            raise _odd(where, block)


def _titled(block: Body, text: str, source: str = "") -> str:
    heads = (block.get("title"), source, block.get("context"))
    return "\n".join([*(head for head in heads if isinstance(head, str) and head), text])


def _assistant(where: str, content: Any) -> Body:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Body] = []
    for at, block in _items("content", {"content": content}):
        kind = block.get("type")  # a pattern of four members takes as long as all the rest
        if kind == "text" and isinstance(text := block.get("text"), str):
            texts.append(text)
        elif kind == "thinking" and isinstance(thought := block.get("thinking"), str):
            thoughts.append(thought)
        elif kind == "tool_use" and (call := _call(block)) is not None:
            calls.append(call)
        elif kind != "redacted_thinking":  # that only its maker can read
            raise _odd(f"{where}[{at}]", block)
    message: Body = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message |= dict.fromkeys(THOUGHTS, "\n".join(thoughts))
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    return message


def _call(block: Body) -> Body | None:
    given, name = block.get("id"), block.get("name")
    if not isinstance(given, str) or not isinstance(name, str) or "input" not in block:
        return None
    given, extra = split_id(given)
    function = {"name": name, "arguments": exact_json.dumps(block["input"]).decode()}
    return {"id": given, "type": "function", "function": function, **(extra or {})}


def without_thoughts(messages: list[Body]) -> list[Body]:
    """Return the messages without what not every server takes in them; the same list if none has.

    That is thinking, and what calls have for their own server.
    """
    called = [message["tool_calls"] for message in messages if "tool_calls" in message]
    signs = any(extra in call for calls in called for call in calls for extra in EXTRAS)
    if not signs and not any(THOUGHTS[0] in message for message in messages):
        return messages
    return [_without_thought(message) for message in messages]


def _without_thought(message: Body) -> Body:
    plain = {name: value for name, value in message.items() if name not in THOUGHTS}
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [{n: v for n, v in call.items() if n not in EXTRAS} for call in calls]
    return plain


def _tool(where: str, tool: Body) -> Body:
    kind, name = tool.get("type"), tool.get("name")
    if kind not in (None, "custom"):
        what = f"a tool of type {kind[:64]!r}" if isinstance(kind, str) else "a tool without a type"
        raise UntranslatableError(what, where)
    if not isinstance(name, str) or "input_schema" not in tool:
        raise UntranslatableError("a tool without name or input_schema", where)
    function: Body = {"name": name}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = tool["input_schema"]
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Body:
    if not isinstance(choice, dict):
        return {}
    given: Body = {}
    match choice:
        case {"type": "tool", "name": str(name)}:
            given["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"type": str(kind)} if kind in _CHOICES:
            given["tool_choice"] = _CHOICES[kind]
        case _:
            raise UntranslatableError("a choice of tools that is not known", "tool_choice")
    if choice.get("disable_parallel_tool_use") is True:
        given["parallel_tool_calls"] = False
    return given


def _output_form(config: Any) -> Body:
    match config:
        case {"format": {"type": "json_schema", "schema": schema}}:
            form = {"name": "output", "schema": schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        case _:
            return {}
