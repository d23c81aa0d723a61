"""What a request body says: the parts that policy, PII scan and semantic lookup look at."""

from collections.abc import Iterator
from typing import Any

from gateway.core.types import Endpoint


def _text_of(content: Any) -> str | None:
    """Return the text of a message's content, or None where it is more than one piece of text."""
    match content:
        case str():
            return content
        case [{"type": "text", "text": str(text), **rest}] if not rest:
            return text
        case _:
            return None


def last_user_text(endpoint: Endpoint, body: dict[str, Any]) -> str | None:
    """Return the text of the last user message (the prompt, for a completion), or None."""
    if endpoint is Endpoint.COMPLETIONS:
        prompt = body.get("prompt")
        return prompt if isinstance(prompt, str) else None
    for message in reversed(body["messages"]):
        if message.get("role") == "user":
            return _text_of(message.get("content"))
    return None


def system_text(body: dict[str, Any]) -> str | None:
    """Return the system and developer messages' texts, joined by line feeds, or None."""
    texts = [
        text
        for message in body.get("messages", ())
        if message.get("role") in ("system", "developer")
        and (text := _text_of(message.get("content"))) is not None
    ]
    return "\n".join(texts) if texts else None


def semantic_question(endpoint: Endpoint, body: dict[str, Any]) -> str | None:
    """Return the text to look up by meaning, or None where only exact lookup is sound.

    That is a chat whose last message is the user's and plain text. With tools the answer may be
    an action, and a completion's prompt is text to go on with, not a question.
    """
    if endpoint is not Endpoint.CHAT or body.get("tools") or body.get("functions"):
        return None
    last = body["messages"][-1]
    if last.get("role") != "user":
        return None
    return _text_of(last.get("content"))


def without_question(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the last message's content left out: the rest must be equal."""
    *earlier, last = body["messages"]
    bare = {field: value for field, value in last.items() if field != "content"}
    return {**body, "messages": [*earlier, bare]}


def strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, depth first, keys left out."""
    stack = [value]
    while stack:
        match stack.pop():
            case str() as text:
                yield text
            case dict() as members:
                stack.extend(reversed(members.values()))
            case list() as items:
                stack.extend(reversed(items))


def prompt_text(body: dict[str, Any]) -> str:
    """Return all text the upstream will read, joined by line feeds, for the PII scan."""
    read = [body.get(field) for field in ("messages", "prompt", "suffix", "tools", "functions")]
    return "\n".join(strings(read))


def answer_text(result: dict[str, Any]) -> str:
    """Return all text of a result's choices, joined by line feeds, for the PII scan."""
    return "\n".join(strings(result.get("choices")))
