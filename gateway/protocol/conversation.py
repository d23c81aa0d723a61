"""The texts of a request body for policy, PII scan and semantic lookup.

Law: what the model or a client can read as text, the PII scan reads too: member names, text cut
into parts or messages, and text escaped once more, as in a tool call's arguments
(``ada\u0040example.com``). The scan itself handles single characters that stand for others.
"""

import re
from collections.abc import Iterator
from typing import Any

from gateway.protocol.endpoints.registry import SPECS
from policies.decision import Endpoint

_ESCAPES = (
    *(("\\\\", "\0"), ("\\n", "\n"), ("\\r", "\n"), ("\\t", " "), ('\\"', '"'), ("\\/", "/")),
    ("\0", "\\"),
)
_MOST_ESCAPED = 3
"""JSON in JSON in JSON is read; deeper nesting does not occur in practice."""
_REACH = 40
"""Characters at the borders of texts that may belong together."""
_TEXT_MEMBERS = ("content", "reasoning_content", "reasoning", "refusal")
"""Members of a message that are shown one after the other."""
_BESIDE_CONTENT = frozenset(_TEXT_MEMBERS[1:])
_SEALED = {"reasoning": "encrypted_content", "thinking": "signature", "redacted_thinking": "data"}
"""Types of reasoning, and the member that only the author can read."""
_LONGEST_NAME = 24
"""Letters of a member's name from which it may hold something encoded."""
_FEWEST_BORDERING = 2
_FEWEST_DIGITS = 7
"""In texts that follow one another, from which they may be the groups of a number."""
_SHORTEST_TOKEN = 20
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,}")
_PARTED = re.compile(r"(?:[ +()./\[\]][0-9_-]|[%\\][A-Za-z0-9])[A-Za-z0-9_-]{19,}")
"""A long token that may go on with a number or an escape."""
_CREDENTIALS = frozenset(
    {"key", "api_key", "api-key", "apikey", "token", "access_token", "subscription-key"}
)
"""Parameters by which some upstreams know their clients: these hold a key in every request."""


def readings(value: Any) -> list[str]:
    """Return the strings in a parsed JSON value, depth first, with their other readings.

    Sealed reasoning is left out: only its author can read it, and it is no client's secret.
    """
    texts: list[str] = []
    stack = [value]
    while stack:
        each = stack.pop()
        kind = type(each)
        if kind is str:
            _add(each, texts)
        elif kind is dict:
            stack += reversed(_read_object(each, texts).values())
        elif kind is list:
            texts += _borders(each)
            stack += reversed(each)
    return texts


def _read_object(members: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """Add what only the whole object tells, and return the members to read one by one."""
    for name in members:
        # Most names are one word, and isalpha tells it at once.
        is_word = name.isalpha() or name.replace("_", "").isalpha()
        if not is_word or len(name) > _LONGEST_NAME:
            _add(name, texts)
    content = members.get("content")
    if type(content) is str:
        if not _BESIDE_CONTENT.isdisjoint(members):
            texts += _message_borders(members)
    elif type(content) is list and any(type(part) is str for part in content):
        texts.append(_text(content) or "")
    sealed = _SEALED.get(members["type"]) if type(members.get("type")) is str else None
    if sealed is not None and type(members.get(sealed)) is str:
        return {name: each for name, each in members.items() if name != sealed}
    return members


def _add(text: str, texts: list[str]) -> None:
    texts.append(text)
    if "\\" in text:
        texts += _unescaped(text)


def names(value: Any) -> list[str]:
    """Return the strings of fields with names and ids: long ones are random and yet no secret."""
    return [as_names(text) for text in readings(value)]


def as_names(text: str) -> str:
    """Return the text with every long token marked as an id, so that it does not look random.

    Where the mark parts a number or an escape from what stands before it
    (``+14155552671_customer``), a second line has the tokens in lower case instead.
    """
    if len(text) < _SHORTEST_TOKEN:
        return text
    marked = _TOKEN.sub(lambda token: f"id-{token.group()}", text)
    if _PARTED.search(text) is None:
        return marked
    return f"{marked}\n{_TOKEN.sub(lambda token: token.group().lower(), text)}"


def query_readings(query: str) -> Iterator[str]:
    """Yield the texts of a query string; a plus stands for a space or for itself."""
    for parameter in query.split("&") if query else ():
        name, _, value = parameter.partition("=")
        text = as_names(value if name.lower() in _CREDENTIALS else parameter)
        yield text
        if "+" in text:
            yield text.replace("+", " ")


def _borders(items: list[Any]) -> list[str]:
    """Return the borders of texts that follow one another, of all and of each role by itself.

    Borders that hold only words are left out, because most of them have no other reading.
    """
    found: list[str] = []
    objects = _objects(items)
    if len(objects) < _FEWEST_BORDERING:
        return found
    texts: list[str] = []
    by_role: dict[str, list[str]] = {}
    for item in objects:
        text = item.get("text")
        if not isinstance(text, str):
            text = _text(item.get("content"))
        if text:
            texts.append(text if len(text) <= 2 * _REACH else f"{text[:_REACH]}\n{text[-_REACH:]}")
            role = item.get("role")
            by_role.setdefault(role if isinstance(role, str) else "", []).append(texts[-1])
    for each in (texts, *(by_role.values() if len(by_role) > 1 else ())):
        if len(each) < _FEWEST_BORDERING:
            continue
        together = "".join(each)
        digits = sum(map(together.count, "0123456789"))
        if digits or not together.isascii() or "@" in together:
            found.append(together)
        if digits >= _FEWEST_DIGITS:
            found.append(" ".join(each))
    return found


def _message_borders(message: dict[str, Any]) -> list[str]:
    """Return the borders of a message's texts, in whichever order they are shown."""
    texts = [each for name in _TEXT_MEMBERS if isinstance(each := message.get(name), str) and each]
    forth = [{"text": each} for each in texts]
    return _borders(forth) + _borders(forth[::-1])


def _text(content: Any, between: str = "") -> str | None:
    """Return all text of a message's content, joined, or None where it has none."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    given = (part.get("text") if isinstance(part, dict) else part for part in parts)
    texts = [text for text in given if isinstance(text, str)]
    return between.join(texts) if texts else None


def _unescaped(text: str) -> Iterator[str]:
    """Yield the text with its backslash escapes decoded, if it has any."""
    for _ in range(_MOST_ESCAPED):
        if "\\" not in text:
            return
        # Only whole steps in C: this is done on the loop.
        text = text.encode("raw_unicode_escape").decode("raw_unicode_escape", "replace")
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for written, meant in _ESCAPES:
            text = text.replace(written, meant)
        yield text


_NAMES = frozenset(
    {"id", "object", "model", "system_fingerprint", "service_tier"}
    | {"user", "safety_identifier", "prompt_cache_key", "metadata"}
)
"""Fields of a result that hold names, which may look random and are no secrets."""
_SORTED_NAMES = sorted(_NAMES)


def last_user_text(endpoint: Endpoint, body: dict[str, Any]) -> str | None:
    """Return all text of the last user turn, or of the question of a body without turns, or None.

    All of it, so that text cut into parts does not slip past a policy's rules.
    """
    spec = SPECS[endpoint]
    question = body.get(spec.question_field)
    if spec.turns is None:
        given = question if isinstance(question, list) else [question]
        texts = [each for each in given if isinstance(each, str) and each]
        return "\n".join(texts) if texts else None
    if isinstance(question, str):
        return question
    for turn in reversed(_objects(question)):
        if turn.get("role") == "user":
            return _text(turn.get("content"), "\n")
    return None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def system_text(endpoint: Endpoint, body: dict[str, Any]) -> str | None:
    """Return the instructions and the system and developer turns' texts, or None.

    They are joined by line feeds.
    """
    spec = SPECS[endpoint]
    instructions = None if spec.instructions is None else _text(body.get(spec.instructions), "\n")
    texts = [] if instructions is None else [instructions]
    texts += (
        text
        for turn in _objects(None if spec.turns is None else body.get(spec.turns))
        if turn.get("role") in ("system", "developer")
        and (text := _text(turn.get("content"), "\n")) is not None
    )
    return "\n".join(texts) if texts else None


def prompt_text(endpoint: Endpoint, body: dict[str, Any], query: str) -> str | None:
    """Return all text that makes the request's key, joined by line feeds, for the PII scan.

    Fields unknown here are among it: some servers take documents or templates that way. None if
    the prompt is no text. A batch of embeddings is taken as it is, for its entries are numbers.
    """
    spec = SPECS[endpoint]
    if spec.is_readable is not None and not spec.is_readable(body):
        return None
    unread = spec.unread
    read = {field: value for field, value in body.items() if field not in unread}
    return "\n".join((*readings(read), *names(body.get("model")), *query_readings(query)))


def names_text(endpoint: Endpoint, body: dict[str, Any]) -> str:
    """Return all text that is sent without being part of the key, for a separate PII scan."""
    neutral = SPECS[endpoint].neutral
    return "\n".join(names([value for field, value in body.items() if field in neutral]))


def answer_text(endpoint: Endpoint, result: dict[str, Any]) -> str:
    """Return all text of a result, joined by line feeds, for the PII scan.

    Not only the text of its choices: all of it is stored, citations and echoed prompts included.
    """
    bare = SPECS[endpoint].without_vectors
    prose = {field: value for field, value in result.items() if field not in _NAMES}
    texts = readings(prose if bare is None else bare(prose))
    texts += names([result[field] for field in _SORTED_NAMES if field in result])
    return "\n".join(texts)
