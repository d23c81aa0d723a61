"""What a request body says: the parts that policy, PII scan and semantic lookup look at."""

from typing import Any

from gateway.protocol.embeddings import CALL
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.fields import neutral_fields
from gateway.protocol.reasons import Reason
from gateway.protocol.text_extraction import names, query_readings, readings

_NAMES = frozenset(
    {"id", "object", "model", "system_fingerprint", "service_tier"}
    | {"user", "safety_identifier", "prompt_cache_key", "metadata"}
)
"""Fields of a result that hold names, which may look random and are no secrets."""

_PROSE = ("text", "refusal")
"""Types of content parts that are text."""

_TOOL_ROLES = frozenset({"tool", "function"})
_INSTRUCTING = frozenset({"system", "developer"})


def _single_text(content: Any) -> str | None:
    """Return the text of a message's content, or None where it is more than one piece of text."""
    match content:
        case str():
            return content
        case [{"type": "text", "text": str(text), **rest}] if not rest:
            return text
        case _:
            return None


def _all_text(content: Any) -> str | None:
    """Return all text of a message's content, joined by line feeds, or None where it has none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = (part for part in content if isinstance(part, dict))
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else None


def last_user_text(endpoint: Endpoint, body: dict[str, Any]) -> str | None:
    """Return all text of the last user message (of the prompt, for a completion), or None.

    All of it, so that text cut into parts does not slip past a policy's rules.
    """
    match endpoint:
        case Endpoint.COMPLETIONS | Endpoint.EMBEDDINGS:
            given = body.get("prompt" if endpoint is Endpoint.COMPLETIONS else "input") or []
            texts = [given] if isinstance(given, str) else [t for t in given if isinstance(t, str)]
            return "\n".join(texts) if texts else None
        case Endpoint.RESPONSES if isinstance(body.get("input"), str):
            text: str = body["input"]
            return text
    for message in reversed(_messages(body)):
        if message.get("role") == "user":
            return _all_text(message.get("content"))
    return None


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages") or body.get("input")
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, dict)]


def system_text(body: dict[str, Any]) -> str | None:
    """Return the instructions and the system and developer messages' texts, or None.

    They are joined by line feeds.
    """
    instructions = body.get("instructions")
    texts = [instructions] if isinstance(instructions, str) else []
    texts += (
        text
        for message in _messages(body)
        if message.get("role") in ("system", "developer")
        and (text := _all_text(message.get("content"))) is not None
    )
    return "\n".join(texts) if texts else None


def ineligible_shape(endpoint: Endpoint, body: dict[str, Any]) -> Reason | None:
    """Return why no text of the request can be looked up by meaning, or None where one can.

    That is a chat whose last message is the user's and plain text, or a response to one text. With
    tools the answer may be an action, and a completion's prompt is text to go on with, not a
    question. What tools returned, images, sounds and files hold the particulars that a question is
    about, wherever they stand.
    """
    if endpoint not in (Endpoint.CHAT, Endpoint.RESPONSES):
        return Reason.ENDPOINT
    if body.get("tools") or body.get("functions"):
        return Reason.TOOLS
    if endpoint is Endpoint.RESPONSES:
        return None if isinstance(body.get("input"), str) else Reason.NOT_TEXT
    *earlier, last = body["messages"]
    if last["role"] in _TOOL_ROLES or any(each["role"] in _TOOL_ROLES for each in earlier):
        return Reason.TOOL_RESULTS
    if last["role"] != "user":
        return Reason.LAST_TURN
    if any(map(_is_more_than_text, earlier)) or _single_text(last.get("content")) is None:
        return Reason.NOT_TEXT
    return None


def semantic_question(endpoint: Endpoint, body: dict[str, Any]) -> str:
    """Return the text that is the question of a request without an ineligible_shape."""
    if endpoint is Endpoint.RESPONSES:
        given: str = body["input"]
        return given
    return _single_text(body["messages"][-1].get("content")) or ""


def follows_turns(endpoint: Endpoint, body: dict[str, Any]) -> bool:
    """Tell whether anything was said before the question, instructions aside."""
    if endpoint is not Endpoint.CHAT:
        return False
    return any(message["role"] not in _INSTRUCTING for message in body["messages"][:-1])


def _is_more_than_text(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") not in _PROSE for part in content)


def without_question(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """Return the body without its question: the rest must be equal."""
    if endpoint is Endpoint.RESPONSES:
        return {field: value for field, value in body.items() if field != "input"}
    *earlier, last = body["messages"]
    bare = {field: value for field, value in last.items() if field != "content"}
    return {**body, "messages": [*earlier, bare]}


def is_readable(endpoint: Endpoint, body: dict[str, Any]) -> bool:
    """Tell whether the prompt is text: nobody here knows what a model's token ids stand for.

    A batch of embeddings is taken as it is: what is stored of it are numbers in any case.
    """
    if endpoint is not Endpoint.COMPLETIONS:
        return True
    prompt = body["prompt"]
    return isinstance(prompt, str) or all(isinstance(each, str) for each in prompt)


def prompt_text(endpoint: Endpoint, body: dict[str, Any], query: str) -> str:
    """Return all text that makes the request's key, joined by line feeds, for the PII scan.

    Fields unknown here are among it: some servers take documents or templates that way.
    """
    unread = neutral_fields(endpoint) | {"model"}
    read = {field: value for field, value in body.items() if field not in unread}
    return "\n".join((*readings(read), *names(body.get("model")), *query_readings(query)))


def names_text(endpoint: Endpoint, body: dict[str, Any]) -> str:
    """Return all text that is sent without being part of the key, for a PII scan of its own."""
    neutral = neutral_fields(endpoint)
    return "\n".join(names([value for field, value in body.items() if field in neutral]))


def answer_text(endpoint: Endpoint, result: dict[str, Any]) -> str:
    """Return all text of a result, joined by line feeds, for the PII scan.

    Not that of its choices alone: all of it is stored, citations and echoed prompts included.
    """
    prose = {field: value for field, value in result.items() if field not in _NAMES}
    if endpoint is Endpoint.EMBEDDINGS:
        prose = {**prose, "data": _without_vectors(result.get("data")), CALL: None}
    return "\n".join((*readings(prose), *names([result.get(field) for field in sorted(_NAMES)])))


def _without_vectors(data: Any) -> Any:
    """Leave the vectors out: in base64 these are strings, too."""
    if not isinstance(data, list):
        return data
    return [{**each, "embedding": None} if isinstance(each, dict) else each for each in data]
