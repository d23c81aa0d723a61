"""The texts that the rules may look at, and where the last user turn begins.

Law: the last user turn and what follows it are not among them; nor are calls of tools and what they
returned, where every byte may matter.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from gateway.protocol.endpoints.table import SPECS
from policies.decision import Endpoint

Path = tuple[str | int, ...]

INSTRUCTING = frozenset({"system", "developer"})
_SPOKEN = frozenset({"system", "developer", "user", "assistant"})
_PROSE = frozenset({"text", "input_text", "output_text"})
_RESULTS = frozenset({"tool", "function"})

BLOCK = "Values of the placeholders in the messages above:"
"""How a block of moved values begins."""


class Text(NamedTuple):
    """One text of the stable prefix, and where it stands in the body."""

    path: Path
    text: str


class Conversation(NamedTuple):
    """What may be rewritten. ``place`` is where a block goes among ``turns``."""

    texts: tuple[Text, ...]
    field: str
    turns: list[Any] | None
    """None where the input of a response is one text, the user's."""
    place: int
    has_block: bool
    heard: tuple[Any, ...] = ()
    """All turns but the model's own: what may come from somebody whom nobody trusts."""


def conversation(
    endpoint: Endpoint, body: dict[str, Any], *, earlier_turns: bool
) -> Conversation | None:
    """Return what of a request may be rewritten, None where there is no last user turn.

    That is what system and developer say before the last user turn and, before the first one,
    anybody; with ``earlier_turns`` all turns before the last one.
    """
    spec, field = SPECS[endpoint], SPECS[endpoint].question_field
    texts: list[Text] = []
    if spec.instructions is not None and isinstance(body.get(spec.instructions), str):
        texts.append(Text((spec.instructions,), body[spec.instructions]))
    turns = body.get(field)
    if isinstance(turns, str):
        return Conversation(tuple(texts), field, None, 0, has_block=False, heard=(turns,))
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return None
    roles = [turn.get("role") for turn in turns]
    users = [index for index, role in enumerate(roles) if role == "user"]
    asked = [index for index in users if not is_block(turns[index])]
    if not asked:
        return None
    for index, role in enumerate(roles[: asked[-1]]):
        if role in INSTRUCTING or (role in _SPOKEN and (earlier_turns or index < asked[0])):
            texts += texts_of((field, index, "content"), turns[index].get("content"))
    place = len(turns) if is_result(turns[-1]) else asked[-1]
    has_block = len(asked) < len(users)
    heard = tuple([turn for turn in turns if turn.get("role") != "assistant"])
    return Conversation(tuple(texts), field, turns, place, has_block=has_block, heard=heard)


def is_block(turn: dict[str, Any]) -> bool:
    """Tell whether a turn is a block of values that were moved before."""
    content = turn.get("content")
    return isinstance(content, str) and content.startswith(BLOCK)


def is_result(turn: dict[str, Any]) -> bool:
    """Tell whether a turn is what a tool returned."""
    kind = turn.get("type")
    return turn.get("role") in _RESULTS or (isinstance(kind, str) and kind.endswith("_output"))


def texts_of(path: Path, content: Any) -> Iterator[Text]:
    """Yield the texts of a turn's content, which is one text or a list of parts."""
    if isinstance(content, str):
        yield Text(path, content)
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and part.get("type") in _PROSE:
            text = part.get("text")
            if isinstance(text, str):
                yield Text((*path, index, "text"), text)
