"""The same request in fewer tokens: ``begin``, then ``next`` with vectors.

Text outside of the markers stays unchanged, and so does text before a client's own breakpoint.
Context belongs to the question in the same turn. Its compression depends on that turn and earlier
ones, never on later ones: so the conversation's prefix repeats. In doubt an error is raised, and
the request is sent unchanged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson

from gateway.prompts.compress.facts import duplicates
from gateway.prompts.compress.passages import Passage, are_prose, passages_of, prose_among
from gateway.prompts.compress.relevance import (
    Question,
    Vector,
    drop_unrelated,
    question_of,
    readable,
)
from gateway.prompts.json_splice import Edit, Path, Places, Text, splice, with_values
from gateway.prompts.outcome import (
    Compression,
    NotRewritten,
    NotRewrittenError,
    PreparedRequest,
    Step,
)
from gateway.prompts.rewrite.text_rules import cut_at_documents, is_block, is_result, texts_of
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.tokens import tokens_in
from policies.decision import CompressSettings, Endpoint

MOST_CHARACTERS = 2**19  # of all declared context
MOST_BLOCKS = 1024
MOST_TEXTS = 512  # passages with vectors


@dataclass(eq=False, slots=True)
class Block:
    """Declared context in the client's form, and its passages."""

    source: str
    is_result: bool = False  # returned by a tool
    passages: list[Passage] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The replacement; the white space around it stays."""
        source = "".join(passage.text for passage in self.passages)
        now = "".join(sentence for passage in self.passages for sentence in passage.rest)
        if len(now) == len(source):
            return now
        before, behind = len(source) - len(source.lstrip()), len(source.rstrip())
        return source[:before] + now.strip() + source[behind:]

    @property
    def prose(self) -> list[Passage]:
        """The passages that may be dropped: none if it is mostly code, tables or JSON."""
        if not are_prose(self.source, self.passages):
            return []
        return [passage for passage in self.passages if passage.rest and not passage.formed]


@dataclass(eq=False, slots=True)
class Turn:
    """A user turn: its words, and the parts of its texts and of the tool results after it."""

    words: str
    texts: list[tuple[Path, list[str | Block]]]
    question: Question = field(init=False)
    passages: list[Passage] = field(default_factory=list)  # which may go for the question

    @property
    def blocks(self) -> list[Block]:
        parts = (part for _, parts in self.texts for part in parts)
        return [part for part in parts if isinstance(part, Block) and part.source]


def _user_turns(endpoint: Endpoint, body: dict[str, Any], settings: CompressSettings) -> list[Turn]:
    name = SPECS[endpoint].question_field
    turns = body.get(name)
    if isinstance(turns, str):
        return [_turn((name,), turns, settings)]
    found: list[Turn] = []
    turns = turns if isinstance(turns, list) else []
    first = max((i for i, turn in enumerate(turns, 1) if _ends_cached(turn)), default=0)
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            continue
        if turn.get("role") == "user" and not is_block(turn):
            one = _turn((name, index, "content"), turn.get("content"), settings)
            found.append(one if index >= first else Turn(one.words, []))
        elif settings.tool_results and is_result(turn) and found and index >= first:
            member = "output" if "output" in turn else "content"
            texts = texts_of((name, index, member), turn.get(member))
            found[-1].texts.extend((path, [Block(text, is_result=True)]) for path, text in texts)
    return found


def _turn(at: Path, content: Any, settings: CompressSettings) -> Turn:
    markers = settings.documents if settings.markers else None
    words: list[str] = []
    texts: list[tuple[Path, list[str | Block]]] = []
    for path, text in texts_of(at, content):
        parts: list[str | Block] = []
        pieces = [text] if markers is None else cut_at_documents(text, markers)
        for number, piece in enumerate(pieces):
            if markers is not None and number % 2:
                inside = piece[len(markers.begin) : -len(markers.end)]
                parts += (markers.begin, Block(inside), markers.end)
            else:
                parts.append(piece)
                words.append(piece)
        texts.append((path, parts))
    return Turn("\n".join(words), texts)


def _ends_cached(turn: Any) -> bool:
    parts = turn.get("content") if isinstance(turn, dict) else None
    held = (turn, *(parts if isinstance(parts, list) else ()))
    return any(isinstance(each, dict) and "cache_control" in each for each in held)


@dataclass(frozen=True, slots=True)
class Draft:
    """A request in compression, and the texts for which it needs vectors."""

    body: dict[str, Any]
    raw: bytes
    settings: CompressSettings
    turns: list[Turn]

    @property
    def texts(self) -> tuple[str, ...]:
        """Each question that needs vectors, its passages behind it."""
        return tuple(
            readable(text)
            for turn in self.turns
            if turn.passages
            for text in (turn.question.text, *(each.text for each in turn.passages))
        )

    def next(self, vectors: Sequence[Vector]) -> PreparedRequest:
        """Take the vectors of ``texts``. Raises NotRewrittenError."""
        refusals = (turn.question.refusal for turn in self.turns if turn.blocks)
        refused = next(filter(None, refusals), None) if self.settings.keep < 1 else None
        at = 0
        for turn in self.turns:
            if turn.passages:
                values = vectors[at : at + 1 + len(turn.passages)]
                if not drop_unrelated(turn.question, turn.passages, values, self.settings):
                    refused = refused or NotRewritten.NEEDS_ALL
                at += len(values)
            _settle(turn.blocks, self.settings.min_gain)
        blocks = [block for turn in self.turns for block in turn.blocks]
        tokens = _tokens(block.source for block in blocks)
        saved = tokens - _tokens(block.text for block in blocks)
        if saved <= 0:
            raise NotRewrittenError(refused or NotRewritten.NOTHING_GAINED)
        steps_done = {passage.step for block in blocks for passage in block.passages}
        if any(block.source != "".join(each.text for each in block.passages) for block in blocks):
            steps_done.add(Step.MINIFIED)
        steps = tuple(step for step in Step if step in steps_done)
        texts = [
            Text(path, "".join(part.text if isinstance(part, Block) else part for part in parts))
            for turn in self.turns
            for path, parts in turn.texts
            if any(isinstance(part, Block) and part.text != part.source for part in parts)
        ]
        places = Places(self.raw, self.body)
        edits = [Edit(*places.span(path), orjson.dumps(text)) for path, text in texts]
        return PreparedRequest(
            with_values(self.body, texts),
            splice(self.raw, sorted(edits)),
            compression=Compression(steps, tokens, saved, refused),
        )


def begin(
    endpoint: Endpoint, body: dict[str, Any], raw: bytes, settings: CompressSettings
) -> Draft | None:
    """Return a request cut, minified and without duplicates, None where it declares nothing.

    Neither ``body`` nor anything in it is changed. Raises NotRewrittenError.
    """
    turns = _user_turns(endpoint, body, settings)
    blocks = [block for turn in turns for block in turn.blocks]
    if not blocks:
        return None
    if len(blocks) > MOST_BLOCKS:
        raise NotRewrittenError(NotRewritten.TOO_MANY)
    if sum(len(block.source) for block in blocks) > MOST_CHARACTERS:
        raise NotRewrittenError(NotRewritten.TOO_LARGE)
    for block in blocks:
        block.passages = passages_of(block.source, minify=settings.minify)
    for index, turn in enumerate(turns):
        turn.question = question_of(turn.words, follows=index > 0)
    if settings.duplicates:
        able = [turn.blocks for turn in turns if not turn.question.counts]
        # A passage is not a duplicate of a passage in another question's context.
        for group in able if settings.keep < 1 else [list(chain(*able))]:
            _drop_duplicates(group)
    for turn in turns:
        turn.passages = _may_go(turn, settings.keep)
    if sum(len(turn.passages) for turn in turns) > MOST_TEXTS:
        raise NotRewrittenError(NotRewritten.TOO_MANY)
    return Draft(body, raw, settings, turns)


def _drop_duplicates(blocks: Sequence[Block]) -> None:
    passages = [passage for block in blocks for passage in block.prose]
    repeats = duplicates(passage.text for passage in passages)
    for passage, again in zip(passages, repeats, strict=True):
        if again:
            passage.keep((), Step.DUPLICATES)


def _may_go(turn: Turn, keep: float) -> list[Passage]:
    left = sum(len(block.text) - keep * len(block.source) for block in turn.blocks)
    if keep >= 1 or turn.question.refusal or left <= 0:
        return []
    passages = [passage for block in turn.blocks for passage in block.prose]
    prose = prose_among([passage.text for passage in passages])
    found = [passage for passage, may_go in zip(passages, prose, strict=True) if may_go]
    return found if len(found) > 1 else []


def _settle(blocks: Sequence[Block], min_gain: float) -> None:
    """Undo changes that would empty a tool's answer, and all changes if they save too little."""
    for block in blocks:
        if block.is_result and not block.text.strip():
            for passage in block.passages:
                passage.keep(passage.sentences, None)
    source = sum(len(block.source) for block in blocks)
    if source - sum(len(block.text) for block in blocks) < min_gain * source:
        for block in blocks:
            block.passages = [Passage([block.source], formed=True)]


def _tokens(texts: Iterable[str]) -> int:
    return tokens_in(sum(len(text.encode()) for text in texts))
