"""Cache breakpoints: which models take them, and where in a prompt they are set.

Laws: an unknown model gets none, because servers may refuse an unknown field. A place depends only
on what is before the last user turn. The client's own breakpoints stay and count. What the provider
would refuse or ignore is not set: a fifth, one on an empty text, lifetimes in the wrong order, a
prefix that is too short.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from gateway.prompts.json_splice import Edit, Places, replaced
from gateway.prompts.outcome import NotRewritten, NotRewrittenError
from gateway.prompts.texts import INSTRUCTING, Path, is_block
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.tokens import BYTES_A_TOKEN
from policies.decision import (
    BreakpointField,
    BreakpointLifetime,
    Breakpoints,
    Endpoint,
    HintSettings,
)

_MARKED = {
    BreakpointField.CACHE_CONTROL: INSTRUCTING | {"user", "assistant"},
    BreakpointField.PROMPT_CACHE_BREAKPOINT: INSTRUCTING | {"user"},
}

MIN_TOKENS = 1024
"""The shortest prefix that most providers cache."""
_ANTHROPIC, _OPENAI = BreakpointField.CACHE_CONTROL, BreakpointField.PROMPT_CACHE_BREAKPOINT
MAX_MARKS = {_ANTHROPIC: 4, _OPENAI: 3}
"""OpenAI writes four prefixes at most, and chooses the place of one itself."""
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


class Marks(NamedTuple):
    """How prefixes of a model are marked."""

    field: BreakpointField
    min_tokens: int
    max_marks: int


def marks_of(model: str, settings: HintSettings) -> Marks | None:
    """Return how prefixes of a model are marked; None where that is neither known nor set."""
    field, tokens = _known(model)
    if settings.field is not BreakpointField.AUTO:
        field = settings.field
    return Marks(field, settings.min_tokens or tokens, MAX_MARKS[field]) if field else None


def keeps_by_options(model: str) -> bool:
    """Tell whether a model of OpenAI's takes ``prompt_cache_options`` in place of a retention."""
    return _known(model)[0] is _OPENAI


def _known(model: str) -> tuple[BreakpointField | None, int]:
    name = model[:256].lower()
    found = (row[1:] for row in _MODELS if row[0].search(name))
    return next(found, (None, MIN_TOKENS))


class Place(NamedTuple):
    """A text at whose end a mark may stand."""

    path: Path
    value: Any
    """The text, or the part that holds it."""
    tokens: int
    """Of the prompt up to its end, estimated."""


def add_marks(
    endpoint: Endpoint, body: dict[str, Any], raw: bytes, settings: HintSettings, marks: Marks
) -> tuple[dict[str, Any], list[Edit]]:
    """Return the body with marks, and the edits to its bytes. Raises NotRewrittenError."""
    theirs = _marks_there(body, marks.field) if marks.field.value.encode() in raw else []
    places = _chosen(endpoint, body, settings, marks)
    wanted = [place for place in places if not _is_marked(place, marks.field)]
    if not wanted:
        return body, []
    if marks.field is BreakpointField.CACHE_CONTROL and any(
        _lifetime(each) != settings.lifetime.value for each in theirs
    ):
        raise NotRewrittenError(NotRewritten.LIFETIMES)
    room = marks.max_marks - len(theirs)
    if room <= 0:
        raise NotRewrittenError(NotRewritten.TAKEN)
    where = Places(raw, body)
    mark = _mark(settings, marks.field)
    edits = []
    for place in wanted[:room]:
        start, end = where.of(place.path)
        if isinstance(place.value, str):
            kind = SPECS[endpoint].text_type or ""
            edits.append(Edit(start, start, b'[{"type":"' + kind.encode() + b'","text":'))
            edits.append(Edit(end, end, b"," + _printed(marks.field, mark) + b"}]"))
            part = {"type": kind, "text": place.value, marks.field.value: mark}
            body = replaced(body, place.path, [part])
        else:
            edits.append(Edit(end - 1, end - 1, b"," + _printed(marks.field, mark)))
            body = replaced(body, place.path, {**place.value, marks.field.value: mark})
    return body, edits


def _chosen(
    endpoint: Endpoint, body: dict[str, Any], settings: HintSettings, marks: Marks
) -> list[Place]:
    """Return the places for marks, the most useful first. Raises NotRewrittenError."""
    turns = body.get(SPECS[endpoint].question_field)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise NotRewrittenError(NotRewritten.TOO_SHORT)
    leading = next(
        (index for index, turn in enumerate(turns) if turn.get("role") not in INSTRUCTING),
        len(turns),
    )
    looked_at = leading if settings.breakpoints is Breakpoints.SYSTEM else len(turns)
    ends = list(_ends(endpoint, body, turns[: min(looked_at, _last_asked(turns))], marks.field))
    system = [place for index, place in ends if index < leading][::-1]
    earlier = [place for index, place in ends if index >= leading][-1:]
    ordered = system[:1] + earlier + system[1:]
    long_enough = [place for place in ordered if place.tokens >= marks.min_tokens]
    if not long_enough:
        raise NotRewrittenError(NotRewritten.TOO_SHORT)
    return long_enough[: marks.max_marks]


def _ends(
    endpoint: Endpoint, body: dict[str, Any], turns: list[Any], field: BreakpointField
) -> Iterator[tuple[int, Place]]:
    """Yield each turn whose end may be marked, by its index, with the place."""
    tools = body.get("tools")
    size = _size_of(tools) if tools else 0
    spec = SPECS[endpoint]
    instructions = None if spec.instructions is None else body.get(spec.instructions)
    if isinstance(instructions, str):
        size += _size_of(instructions)
    kind = spec.text_type or ""
    for index, turn in enumerate(turns):
        if is_block(turn):
            continue
        content = turn.get("content")
        size += _size_of(content)
        if turn.get("role") not in _MARKED[field]:
            continue
        path = (spec.question_field, index, "content")
        tokens = size // BYTES_A_TOKEN
        if isinstance(content, str) and content.strip():
            yield index, Place(path, content, tokens)
        elif isinstance(content, list):
            for number, part in _last_text(content, kind):
                yield index, Place((*path, number), part, tokens)


def _last_asked(turns: list[Any]) -> int:
    """Return the index of the last user turn, 0 where there is none."""
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].get("role") == "user" and not is_block(turns[index]):
            return index
    return 0


def _last_text(content: list[Any], kind: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the last part that holds text, if there is one."""
    found = [
        (number, part)
        for number, part in enumerate(content)
        if isinstance(part, dict) and part.get("type") == kind and _holds_text(part)
    ]
    return found[-1:]


def _holds_text(part: dict[str, Any]) -> bool:
    text = part.get("text")
    return isinstance(text, str) and bool(text.strip())


def _is_marked(place: Place, field: BreakpointField) -> bool:
    return isinstance(place.value, dict) and field.value in place.value


def _marks_there(body: dict[str, Any], field: BreakpointField) -> list[Any]:
    """Return the marks that the client has set, wherever they may stand."""
    holders: list[Any] = [body]
    for name in ("tools", "messages", "input"):
        for each in _dicts(body.get(name)):
            holders += (each, each.get("function"))
            for part in _dicts(each.get("content")):
                holders += (part, *_dicts(part.get("content")))
    found = (holder.get(field.value) for holder in holders if isinstance(holder, dict))
    return [mark for mark in found if mark is not None]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _lifetime(mark: Any) -> Any:
    return mark.get("ttl", BreakpointLifetime.SHORT.value) if isinstance(mark, dict) else None


def _mark(settings: HintSettings, field: BreakpointField) -> dict[str, str]:
    if field is BreakpointField.PROMPT_CACHE_BREAKPOINT:
        return {"mode": "explicit"}
    if settings.lifetime is BreakpointLifetime.SHORT:
        return {"type": "ephemeral"}
    return {"type": "ephemeral", "ttl": settings.lifetime.value}


def _printed(field: BreakpointField, mark: dict[str, str]) -> bytes:
    return b'"' + field.value.encode() + b'":' + orjson.dumps(mark)


def _size_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer of more than 64 bits, or text that is no Unicode
        return 0
