"""A request made to say the same in fewer tokens: ``begin``, then ``next`` with vectors.

What is made of context depends on its own turn and those before it, on nothing later. What cannot
be sure raises an error, and the request is sent as it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from gateway.prompts.compress.context import Block, Question, Turn, declared, question_of, readable
from gateway.prompts.compress.facts import said_before
from gateway.prompts.compress.passages import Passage, passages_of, prose_among
from gateway.prompts.compress.relevance import Vector, drop_unrelated
from gateway.prompts.json_splice import Edit, Places, all_replaced, printed, spliced
from gateway.prompts.outcome import Compression, NotRewritten, NotRewrittenError, Step
from gateway.prompts.texts import Text
from gateway.protocol.tokens import tokens_in
from policies.decision import CompressSettings, Endpoint

MOST_CHARACTERS = 2**19  # of all declared context
MOST_BLOCKS = 1024
MOST_TEXTS = 512  # passages whose vectors are asked for


class Compressed(NamedTuple):
    """A request as it is sent: ``raw`` is the JSON of ``body``."""

    body: dict[str, Any]
    raw: bytes
    told: Compression | None


class Context(NamedTuple):
    """The context of one question; ``asked`` are the passages whose vectors are asked for."""

    question: Question
    blocks: list[Block]
    asked: list[Passage]


@dataclass(frozen=True, slots=True)
class Compressing:
    """A request that is being compressed, and the texts whose vectors it waits for."""

    body: dict[str, Any]
    raw: bytes
    settings: CompressSettings
    turns: list[Turn]
    contexts: list[Context]

    @property
    def texts(self) -> tuple[str, ...]:
        """Each question that asks for vectors, its passages behind it."""
        return tuple(
            readable(text)
            for context in self.contexts
            if context.asked
            for text in (context.question.text, *(passage.text for passage in context.asked))
        )

    def next(self, vectors: Sequence[Vector]) -> Compressed:
        """Take the vectors of ``texts``. Raises NotRewrittenError."""
        refusals = (each.question.refusal for each in self.contexts if each.blocks)
        refused = next(filter(None, refusals), None) if self.settings.keep < 1 else None
        at = 0
        for question, blocks, asked in self.contexts:
            if asked:
                given = vectors[at : at + 1 + len(asked)]
                if not drop_unrelated(question, asked, given, self.settings):
                    refused = refused or NotRewritten.NEEDS_ALL
                at += len(given)
            _settle(blocks, self.settings.min_gain)
        blocks = [block for context in self.contexts for block in context.blocks]
        tokens = _tokens(block.came for block in blocks)
        saved = tokens - _tokens(block.text for block in blocks)
        if saved <= 0:
            raise NotRewrittenError(refused or NotRewritten.NOTHING_GAINED)
        taken = {passage.step for block in blocks for passage in block.passages}
        if any(block.came != "".join(each.text for each in block.passages) for block in blocks):
            taken.add(Step.MINIFIED)
        steps = tuple(step for step in Step if step in taken)
        return Compressed(*self._sent(), Compression(steps, tokens, saved, refused))

    def _sent(self) -> tuple[dict[str, Any], bytes]:
        """Return body and bytes with what became of the blocks."""
        places = Places(self.raw, self.body)
        texts = [
            Text(path, "".join(part.text if isinstance(part, Block) else part for part in parts))
            for turn in self.turns
            for path, parts in turn.texts
            if any(isinstance(part, Block) and part.text != part.came for part in parts)
        ]
        try:
            edits = [Edit(*places.of(each.path), printed(each.text)) for each in texts]
        except TypeError:  # half of a surrogate pair
            raise NotRewrittenError(NotRewritten.UNREADABLE) from None
        return all_replaced(self.body, texts), spliced(self.raw, sorted(edits))


def begin(
    endpoint: Endpoint, body: dict[str, Any], raw: bytes, settings: CompressSettings
) -> Compressing | None:
    """Return a request cut, minified and without duplicates, None where it declares nothing.

    Neither ``body`` nor anything in it is changed. Raises NotRewrittenError.
    """
    turns = declared(endpoint, body, settings)
    declares = [turn.blocks for turn in turns]
    sizes = [len(block.came) for blocks in declares for block in blocks]
    if not sizes:
        return None
    if len(sizes) > MOST_BLOCKS:
        raise NotRewrittenError(NotRewritten.TOO_MANY)
    if sum(sizes) > MOST_CHARACTERS:
        raise NotRewrittenError(NotRewritten.TOO_LARGE)
    for block in chain(*declares):
        block.passages = passages_of(block.came, minify=settings.minify)
    questions = [question_of(turn.words, follows=index > 0) for index, turn in enumerate(turns)]
    each = list(zip(questions, declares, strict=True))
    if settings.duplicates:
        able = [blocks for question, blocks in each if not question.counts]
        # What goes for one question may not go because the context of another one says the same.
        for group in able if settings.keep < 1 else [list(chain(*able))]:
            _drop_duplicates(group)
    contexts = [Context(*one, _asked(*one, settings.keep)) for one in each]
    if sum(len(context.asked) for context in contexts) > MOST_TEXTS:
        raise NotRewrittenError(NotRewritten.TOO_MANY)
    return Compressing(body, raw, settings, turns, contexts)


def _drop_duplicates(blocks: Sequence[Block]) -> None:
    """Let passages go that an earlier one of any block says."""
    passages = [passage for block in blocks for passage in block.prose]
    told = said_before(passage.text for passage in passages)
    for passage, again in zip(passages, told, strict=True):
        if again:
            passage.keep((), Step.DUPLICATES)


def _asked(question: Question, blocks: Sequence[Block], keep: float) -> list[Passage]:
    """Return the passages that may go for a question, none where none has to."""
    left = sum(len(block.text) - keep * len(block.came) for block in blocks)
    if keep >= 1 or question.refusal or left <= 0:
        return []
    passages = [passage for block in blocks for passage in block.prose]
    may_go = prose_among([passage.text for passage in passages])
    asked = [passage for passage, may in zip(passages, may_go, strict=True) if may]
    return asked if len(asked) > 1 else []


def _settle(blocks: Sequence[Block], min_gain: float) -> None:
    """Undo what would empty a tool's answer, and all of it where too little would be saved."""
    for block in blocks:
        if block.is_result and not block.text.strip():
            for passage in block.passages:
                passage.keep(passage.sentences, None)
    came = sum(len(block.came) for block in blocks)
    if came - sum(len(block.text) for block in blocks) < min_gain * came:
        for block in blocks:
            block.passages = [Passage([block.came], formed=True)]


def _tokens(texts: Iterable[str]) -> int:
    return tokens_in(sum(len(text.encode("utf-8", "surrogatepass")) for text in texts))
