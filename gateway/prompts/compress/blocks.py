"""Which texts of a request are declared context, and which question each belongs to.

Law: what system and developer say is never touched, nor what stands before a breakpoint of the
client's own (``cache_control``), nor a word outside of the markers. A block belongs to the question
of its own turn, never to a later one: what is made of it is the same in every later request, so
that the conversation's prefix repeats.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from gateway.prompts.compress.outcome import Refusal, RefusedError
from gateway.prompts.outcome import DeclinedError
from gateway.prompts.rewrite.documents import pieces
from gateway.prompts.texts import Path, is_block
from gateway.protocol.endpoint import Endpoint
from policies.decision import CompressSettings, DocumentSettings

_RESULTS = frozenset({"tool", "function"})
_PROSE = frozenset({"text", "input_text"})
MOST_BLOCKS = 1024


class Block(NamedTuple):
    """Declared context: its place in the text at ``path``, and in which turn it was asked."""

    path: Path
    start: int
    end: int
    question: int
    """Index among the questions."""
    is_result: bool
    """Returned by a tool: all of the text."""


class Declared(NamedTuple):
    """The blocks of a request in their order, and the questions that they belong to."""

    blocks: tuple[Block, ...]
    questions: tuple[str, ...]


def declared(endpoint: Endpoint, body: dict[str, Any], settings: CompressSettings) -> Declared:
    """Return the declared context of a request. Raises RefusedError."""
    field = "messages" if endpoint is Endpoint.CHAT else "input"
    turns = body.get(field)
    paths: list[Path]
    if isinstance(turns, str):
        turns, paths = [{"role": "user", "content": turns}], [(field,)]
    elif isinstance(turns, list):
        paths = [(field, index, "content") for index in range(len(turns))]
    else:
        return Declared((), ())
    blocks: list[Block] = []
    questions: list[str] = []
    first = _after_breakpoint(turns)
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            continue
        path = paths[index]
        if turn.get("role") == "user" and not is_block(turn):
            texts = list(_texts(path, turn.get("content")))
            found, words = _marked(texts, len(questions), settings)
            questions.append(words)
        elif settings.tool_results and _is_result(turn) and questions:
            name = "output" if "output" in turn else "content"
            texts = list(_texts((*path[:-1], name), turn.get(name)))
            found = [
                Block(at, 0, len(text), len(questions) - 1, is_result=True) for at, text in texts
            ]
        else:
            continue
        if index >= first:
            blocks += found
    if len(blocks) > MOST_BLOCKS:
        raise RefusedError(Refusal.TOO_MANY)
    return Declared(tuple(blocks), tuple(questions))


def _marked(
    texts: list[tuple[Path, str]], question: int, settings: CompressSettings
) -> tuple[list[Block], str]:
    """Return the blocks between markers in a turn, and its own words."""
    markers = settings.documents
    if markers is None or not settings.markers:
        return [], "\n".join(text for _, text in texts)
    blocks: list[Block] = []
    words: list[str] = []
    for path, text in texts:
        at = 0
        for number, piece in enumerate(_pieces(text, markers)):
            end = at + len(piece)
            if number % 2:
                inside = at + len(markers.begin), end - len(markers.end)
                blocks.append(Block(path, *inside, question, is_result=False))
            else:
                words.append(piece)
            at = end
    return blocks, "\n".join(words)


def _pieces(text: str, markers: DocumentSettings) -> list[str]:
    try:
        return pieces(text, markers)
    except DeclinedError as error:
        raise RefusedError(Refusal(error.why.value)) from None


def _texts(path: Path, content: Any) -> Iterator[tuple[Path, str]]:
    if isinstance(content, str):
        yield path, content
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and part.get("type") in _PROSE:
            text = part.get("text")
            if isinstance(text, str):
                yield (*path, index, "text"), text


def _is_result(turn: dict[str, Any]) -> bool:
    kind = turn.get("type")
    return turn.get("role") in _RESULTS or (isinstance(kind, str) and kind.endswith("_output"))


def _after_breakpoint(turns: list[Any]) -> int:
    """Return the index of the first turn behind the last breakpoint that the client set."""
    for index in reversed(range(len(turns))):
        turn = turns[index]
        parts = turn.get("content") if isinstance(turn, dict) else None
        held = [turn, *(parts if isinstance(parts, list) else ())]
        if any(isinstance(each, dict) and "cache_control" in each for each in held):
            return index + 1
    return 0
