"""Hints to the provider about the stable prefix: breakpoints, ``prompt_cache_key``, retention.

Laws: bytes are only added. What the client sets itself stays and counts. The last user turn is
never changed, and decides nothing. A request that has its hints gets no more of them. An unknown
model gets no breakpoints, because servers may refuse an unknown field. What the provider would
refuse or ignore is not set: a fifth breakpoint, one on an empty text, lifetimes in the wrong order,
a prefix that is too short.

By the ``prompt_cache_key`` OpenAI sends requests with one beginning to one machine. Two requests of
a rule and a tenant have the same key if they begin alike for about the shortest prefix that is
cached. The key is a digest under the gateway's secret, and tells nothing of the prompt.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from gateway.prompts.json_splice import Edit, Path, Places, field_edit, splice, with_values
from gateway.prompts.outcome import (
    Declined,
    NotRewritten,
    NotRewrittenError,
    PreparedRequest,
    Rewrite,
)
from gateway.prompts.rewrite.text_rules import INSTRUCTING, is_block
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.tokens import BYTES_A_TOKEN
from policies.decision import (
    BreakpointField,
    BreakpointLifetime,
    Breakpoints,
    Endpoint,
    HintSettings,
    KeyRetention,
)

CACHE_KEY = "prompt_cache_key"
RETENTION = "prompt_cache_retention"
_OPTIONS = "prompt_cache_options"
BEGINNING_BYTES = 3072
"""1,024 tokens of dense text. With fewer, prompts share a key that share less."""
DIGEST_BYTES = 16
"""OpenAI takes keys of up to 64 characters."""

MIN_TOKENS = 1024
"""The shortest prefix that most providers cache."""
_ANTHROPIC, _OPENAI = BreakpointField.CACHE_CONTROL, BreakpointField.PROMPT_CACHE_BREAKPOINT
MAX_MARKS = {_ANTHROPIC: 4, _OPENAI: 3}
"""OpenAI writes four prefixes at most, and chooses the place of one itself."""
_MARKED = {_ANTHROPIC: INSTRUCTING | {"user", "assistant"}, _OPENAI: INSTRUCTING | {"user"}}
"""The roles of turns that may be marked."""
_MODELS = tuple(
    (re.compile(pattern), field, tokens)
    for pattern, field, tokens in (
        (r"claude.*(?:opus|fable|mythos)-5", _ANTHROPIC, 512),
        (r"claude.*(?:opus-4[.-][56]|haiku-4[.-]5)", _ANTHROPIC, 4096),
        (r"claude.*(?:opus-4[.-]7|haiku)", _ANTHROPIC, 2048),
        (r"claude", _ANTHROPIC, MIN_TOKENS),
        (r"gemini", _ANTHROPIC, MIN_TOKENS),
        (r"gpt-(?:5\.(?:[6-9]|[1-9][0-9])|[6-9]|[1-9][0-9])", _OPENAI, MIN_TOKENS),
    )
)
"""Models, the field that they take, and the shortest cached prefix; the first match counts."""


class Place(NamedTuple):
    """A text that may end with a mark."""

    path: Path
    value: Any
    """The text, or the part that holds it."""
    tokens: int
    """Of the prompt up to its end, estimated."""


def hints_for(endpoint: Endpoint, settings: HintSettings) -> tuple[Rewrite, ...]:
    """Return the hints that are on, if requests of this endpoint have any."""
    if SPECS[endpoint].turns is None:
        return ()
    openais = not SPECS[endpoint].is_anthropic
    switches = (
        (Rewrite.BREAKPOINTS, settings.breakpoints is not Breakpoints.OFF),
        (Rewrite.CACHE_KEY, settings.cache_key and openais),
        (Rewrite.RETENTION, settings.retention is not KeyRetention.UNSET and openais),
    )
    return tuple(hint for hint, on in switches if on)


def add_hints(
    endpoint: Endpoint,
    body: dict[str, Any],
    raw: bytes,
    settings: HintSettings,
    *,
    rule: str,
    owner: bytes,
) -> PreparedRequest:
    """Return the request with the hints of ``settings``; ``raw`` is the JSON of ``body``.

    ``rule`` and ``owner``, which tells tenants apart, are part of the cache key.
    """
    changes: list[Rewrite] = []
    declined: list[Declined] = []
    edits: list[Edit] = []
    sent = body
    for hint in hints_for(endpoint, settings):
        added: list[Edit] = []
        fields: dict[str, str] = {}
        try:
            if hint is Rewrite.BREAKPOINTS:
                sent, added = _add_marks(endpoint, body, raw, settings)
            elif hint is Rewrite.RETENTION:
                fields = _retention(body, settings)
            elif CACHE_KEY not in body:
                fields = {CACHE_KEY: cache_key(endpoint, body, rule, owner, settings.keys)}
        except NotRewrittenError as error:
            declined.append(Declined(hint, error.why))
        if fields:
            sent = {**sent, **fields}
            added = [field_edit(body, raw, *field) for field in fields.items()]
        if added:
            edits += added
            changes.append(hint)
    # Edits at one place stay in the order in which they were made.
    edits.sort(key=lambda edit: edit.start)
    if edits:
        raw = splice(raw, edits)
    return PreparedRequest(sent, raw, tuple(changes), tuple(declined), tuple(edits))


def _retention(body: dict[str, Any], settings: HintSettings) -> dict[str, str]:
    if RETENTION in body or _OPTIONS in body:
        return {}
    if _known_model(body)[0] is _OPENAI:  # it takes the options, and refuses the other
        raise NotRewrittenError(NotRewritten.MODEL)
    return {RETENTION: settings.retention.value}


def cache_key(endpoint: Endpoint, body: dict[str, Any], rule: str, owner: bytes, keys: int) -> str:
    """Return the key of a request. Raises NotRewrittenError where the request cannot be read.

    ``owner`` tells tenants apart. A conversation stays with one of its ``keys``.
    """
    running = blake2b(key=owner, digest_size=DIGEST_BYTES, person=b"refrain prompt")
    running.update(orjson.dumps([rule, body.get("model")]))
    left = BEGINNING_BYTES
    try:
        for value in _prompt(endpoint, body):
            piece = orjson.dumps(value)
            running.update(piece[:left])
            left -= len(piece)
            if left <= 0:
                break
        if keys > 1:
            running.update(bytes([_key_of_conversation(endpoint, body, keys)]))
    except TypeError:  # an integer of more than 64 bits
        raise NotRewrittenError(NotRewritten.UNREADABLE) from None
    return running.hexdigest()


def _prompt(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Any]:
    """Yield the prompt in the order of the chat template, without values moved to its end."""
    *before, _ = SPECS[endpoint].prompt_fields
    for field in before:
        value = body.get(field)
        yield from value if isinstance(value, list) else (value,) if value else ()
    yield from _turns(endpoint, body)


def _turns(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Any]:
    turns = body.get(SPECS[endpoint].question_field)
    for turn in turns if isinstance(turns, list) else (turns,):
        if not (isinstance(turn, dict) and is_block(turn)):
            yield turn


def _key_of_conversation(endpoint: Endpoint, body: dict[str, Any], keys: int) -> int:
    """Return the index of the conversation's key, which depends on its first user turn."""
    users = (
        turn.get("content") if isinstance(turn, dict) else turn
        for turn in _turns(endpoint, body)
        if not isinstance(turn, dict) or turn.get("role") == "user"
    )
    digest = blake2b(orjson.dumps(next(users, None)), digest_size=8).digest()
    return int.from_bytes(digest, "big") % keys


def _known_model(body: dict[str, Any]) -> tuple[BreakpointField | None, int]:
    """Return by which field prefixes of the model are marked, and the shortest cached prefix."""
    model = body.get("model")
    name = model[:256].lower() if isinstance(model, str) else ""
    found = (row[1:] for row in _MODELS if row[0].search(name))
    return next(found, (None, MIN_TOKENS))


def _add_marks(
    endpoint: Endpoint, body: dict[str, Any], raw: bytes, settings: HintSettings
) -> tuple[dict[str, Any], list[Edit]]:
    field, least = _known_model(body)
    if settings.field is not BreakpointField.AUTO:
        field = settings.field
    spec = SPECS[endpoint]
    fits = spec.takes_cache_control if field is _ANTHROPIC else not spec.is_anthropic
    if field is None or not fits:
        raise NotRewrittenError(NotRewritten.MODEL)
    name = field.value
    theirs = _marks_there(body, name) if name.encode() in raw else []
    places = _places(endpoint, body, settings, field)
    places = [place for place in places if place.tokens >= (settings.min_tokens or least)]
    if not places:
        raise NotRewrittenError(NotRewritten.TOO_SHORT)
    places = [
        place
        for place in places[: MAX_MARKS[field]]
        if isinstance(place.value, str) or name not in place.value
    ]
    if not places:
        return body, []
    if field is _ANTHROPIC and any(_lifetime(each) != settings.lifetime.value for each in theirs):
        raise NotRewrittenError(NotRewritten.LIFETIMES)
    room = MAX_MARKS[field] - len(theirs)
    if room <= 0:
        raise NotRewrittenError(NotRewritten.TAKEN)
    where = Places(raw, body)
    mark = {"mode": "explicit"} if field is _OPENAI else {"type": "ephemeral"}
    if field is _ANTHROPIC and settings.lifetime is not BreakpointLifetime.SHORT:
        mark["ttl"] = settings.lifetime.value
    written = b',"' + name.encode() + b'":' + orjson.dumps(mark)
    kind = SPECS[endpoint].text_type or ""
    edits: list[Edit] = []
    values: list[tuple[Path, Any]] = []
    for path, value, _ in places[:room]:
        start, end = where.span(path)
        if isinstance(value, str):
            edits.append(Edit(start, start, b'[{"type":"' + kind.encode() + b'","text":'))
            edits.append(Edit(end, end, written + b"}]"))
            values.append((path, [{"type": kind, "text": value, name: mark}]))
        else:
            edits.append(Edit(end - 1, end - 1, written))
            values.append((path, {**value, name: mark}))
    return with_values(body, values), edits


def _places(
    endpoint: Endpoint, body: dict[str, Any], settings: HintSettings, field: BreakpointField
) -> list[Place]:
    """Return the places for marks, the most useful first. Raises NotRewrittenError."""
    spec = SPECS[endpoint]
    turns = body.get(spec.question_field)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise NotRewrittenError(NotRewritten.TOO_SHORT)
    questions = [i for i, turn in enumerate(turns) if turn.get("role") == "user"]
    questions = [index for index in questions if not is_block(turns[index])]
    tools, instructions = body.get("tools"), spec.instructions and body.get(spec.instructions)
    size = sum(_size_of(each) for each in (tools, instructions) if each)
    system: list[Place] = []
    if spec.is_anthropic:
        found = _last_text(("system",), instructions, spec.text_type)
        system += () if found is None else (Place(*found, size // BYTES_A_TOKEN),)
    earlier: list[Place] = []
    places = system
    for index, turn in enumerate(turns[: questions[-1] if questions else 0]):
        if turn.get("role") not in INSTRUCTING:
            places = earlier
        if is_block(turn):
            continue
        content = turn.get("content")
        size += _size_of(content)
        if turn.get("role") not in _MARKED[field]:
            continue
        found = _last_text((spec.question_field, index, "content"), content, spec.text_type)
        if found is not None:
            places.append(Place(*found, size // BYTES_A_TOKEN))
    if settings.breakpoints is Breakpoints.SYSTEM:
        earlier = []
    return system[-1:] + earlier[-1:] + system[-2::-1]


def _last_text(path: Path, content: Any, kind: str | None) -> tuple[Path, Any] | None:
    """Return where a turn's last text stands, and the text, or the part that holds it."""
    if isinstance(content, str):
        return (path, content) if content.strip() else None
    parts = content if isinstance(content, list) else []
    for number, part in reversed(list(enumerate(parts))):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == kind else None
        if isinstance(text, str) and text.strip():
            return (*path, number), part
    return None


def _marks_there(body: dict[str, Any], name: str) -> list[Any]:
    holders: list[Any] = [body]
    for field in ("tools", "system", "messages", "input"):
        for each in _objects(body.get(field)):
            holders += (each, each.get("function"))
            for part in _objects(each.get("content")):
                holders += (part, *_objects(part.get("content")))
    found = (holder.get(name) for holder in holders if isinstance(holder, dict))
    return [mark for mark in found if mark is not None]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _lifetime(mark: Any) -> Any:
    return mark.get("ttl", BreakpointLifetime.SHORT.value) if isinstance(mark, dict) else None


def _size_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer of more than 64 bits
        return 0
