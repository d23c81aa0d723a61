"""Do two answers to one question say the same? Equal, different, or not to be told.

Law: what is called equal may be served in the other's place, and what is called different counts
against a rule: whatever is neither beyond doubt is unsure. Two answers that a model drew at a
temperature differ in wording and in what they leave out; what they must not differ in are numbers,
names, yes and no, tool calls, code.

``compare`` decides by the texts alone where it can; else it returns what is to be embedded, whose
``next`` takes the vectors.

What a complete result says, whichever endpoint it is of: its text, its tool calls, its end.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from gateway.semantic.compare.markdown import Unmarked, unmarked
from gateway.semantic.compare.text_forms import name_others, named
from policies.plain_enum import plain_members


@dataclass(frozen=True, slots=True)
class Answer:
    """What a stored or fresh result says. ``calls`` are names and arguments of tool calls."""

    text: str
    calls: tuple[str, ...]
    finish: tuple[str, ...]


def read_answer(result: Any) -> Answer | None:
    """Return what a result says, None where it is of no form known here."""
    match result:
        case {"choices": [*choices]} if choices:
            return _chat(choices)
        case {"output": [*items], "status": str(status)}:
            return _response(items, status)
        case _:
            return None


def _chat(choices: Sequence[Any]) -> Answer | None:
    texts: list[str] = []
    calls: list[str] = []
    finish: list[str] = []
    for choice in choices:
        match choice:
            case {"message": dict(message), "finish_reason": str(reason)}:
                finish.append(reason)
            case _:
                return None
        texts.append(message.get("content") or "")
        calls += [
            _call(call.get("function") or call.get("custom"))
            for call in message.get("tool_calls") or ()
        ]
        if message.get("function_call"):
            calls.append(_call(message["function_call"]))
    return Answer("\n\n".join(texts), tuple(calls), tuple(finish))


def _response(items: Sequence[Any], status: str) -> Answer | None:
    texts: list[str] = []
    calls: list[str] = []
    for item in items:
        match item:
            case {"type": "message", "content": [*parts]}:
                texts += [p["text"] for p in parts if isinstance(p.get("text"), str)]
            case {"type": "reasoning"}:
                pass
            case {"type": str(), "name": str()}:
                calls.append(_call(item))
            case _:
                return None
    return Answer("\n\n".join(texts), tuple(calls), (status,))


def _call(given: Any) -> str:
    """Return name and arguments, in one order of their keys."""
    if not isinstance(given, dict):
        return repr(given)
    arguments: Any = given.get("arguments", given.get("input"))
    # Whatever is no JSON is free text.
    with contextlib.suppress(orjson.JSONDecodeError, TypeError):
        parsed = orjson.loads(arguments)
        arguments = orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS).decode()
    return f"{given.get('name')}({arguments})"


@plain_members
class Outcome(StrEnum):
    """Whether the two answers say the same."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNSURE = "unsure"


EQUAL_COSINE = 0.9
"""From here on two answers say the same, where nothing speaks against it."""
DIFFERENT_COSINE = 0.6
"""Below, they do not."""

_MAX_COSINE = 1.01
"""Of unit vectors, with what rounding adds."""

SHORT_WORDS = 40
"""Up to here, every number counts, and so does every not and every name."""

PIECE_WORDS = 80
PIECE_CHARACTERS = 600
MAX_PIECES = 12
MAX_CHARACTERS = 20_000
"""Of an answer; longer ones are the same to the letter or are not told."""

Vector = Sequence[float]


class Judgement(NamedTuple):
    """An outcome, and one word for what told."""

    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True)
class NeedsVectors:
    """Needs the vectors of ``texts``: first the stored answer's pieces, then the fresh one's."""

    texts: tuple[str, ...]
    stored: int
    """How many of them are the stored answer's."""
    cut: bool
    """Whether the end of one is not among them."""
    objection: str | None
    """What speaks against equal however near they are."""
    contradiction: str | None
    """What makes two near ones different."""

    def next(self, vectors: Sequence[Vector] | None) -> Judgement:
        """Take the vectors, None where there are none to be had."""
        if vectors is None:
            return Judgement(Outcome.UNSURE, "no-vectors")
        near = _nearness(vectors[: self.stored], vectors[self.stored :])
        if not abs(near) <= _MAX_COSINE:  # NaN neither
            return Judgement(Outcome.UNSURE, "no-vectors")
        if near < DIFFERENT_COSINE:
            return Judgement(Outcome.DIFFERENT, "meaning")
        if self.contradiction is not None:
            return Judgement(Outcome.DIFFERENT, self.contradiction)
        if self.objection is not None:
            return Judgement(Outcome.UNSURE, self.objection)
        # Whatever is no number is not near either.
        if near >= EQUAL_COSINE and not self.cut:
            return Judgement(Outcome.EQUAL, "meaning")
        return Judgement(Outcome.UNSURE, "length" if self.cut else "meaning")


def compare(stored: Any, fresh: Any) -> Judgement | NeedsVectors:
    """Compare two complete results of the same endpoint."""
    ours, theirs = read_answer(stored), read_answer(fresh)
    if ours is None or theirs is None:
        return Judgement(Outcome.UNSURE, "unknown-shape")
    if ours.calls != theirs.calls:
        return Judgement(Outcome.DIFFERENT, "tool-calls")
    if ours.finish != theirs.finish:
        return Judgement(Outcome.DIFFERENT, "finish-reason")
    if max(len(ours.text), len(theirs.text)) > MAX_CHARACTERS:
        same = ours.text == theirs.text
        return Judgement(Outcome.EQUAL, "text") if same else Judgement(Outcome.UNSURE, "length")
    one, other = unmarked(ours.text), unmarked(theirs.text)
    first, second = _plain(one.folded), _plain(other.folded)
    if first == second and one.blocks == other.blocks:
        return Judgement(Outcome.EQUAL, "text")
    if not first or not second:
        return Judgement(Outcome.DIFFERENT, "empty")
    if {_polarity(first.casefold()), _polarity(second.casefold())} == {"yes", "no"}:
        return Judgement(Outcome.DIFFERENT, "yes-no")
    if one.blocks != other.blocks or one.inline != other.inline:
        return Judgement(Outcome.UNSURE, "code")
    return _to_embed(one, other)


_ENDS = " .!,;:\n"


def _plain(text: str) -> str:
    """Return the words, without kinds of white space."""
    return " ".join(text.split()).strip(_ENDS)


_YES = {"yes", "yeah", "yep", "correct", "true", "indeed", "certainly", "absolutely"}
_NO = {"no", "nope", "incorrect", "false"}
_NEGATIONS = {
    "not",
    "no",
    "never",
    "none",
    "cannot",
    "nobody",
    "nothing",
    "neither",
    "nor",
    "without",
}
_NUMBER = re.compile(r"\d+(?:(?:[.,:/-]|\^[+\u2212-]?)\d+)*")
_BELOW_ZERO = re.compile(r"(?m)(?:^[^\S\n]*[-\u2212][^\S\n]*|(?<=[\s(])[-\u2212])(\d+)")
_COUNTED = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# "A new one" counts nothing.
_NUMBERS = {word: str(number) for number, word in enumerate(_COUNTED) if word != "one"}
_NAMED_TIMES = {
    *("january", "february", "march", "april", "june", "july", "august", "september"),
    *("october", "november", "december", "monday", "tuesday", "wednesday", "thursday", "friday"),
    *("saturday", "sunday", "today", "tomorrow", "yesterday"),
}
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def _polarity(plain: str) -> str | None:
    """Return whether an answer begins with a yes or a no."""
    first = _WORD.match(plain)
    word = first[0] if first else ""
    return "yes" if word in _YES else "no" if word in _NO else None


def _numbers(plain: str) -> frozenset[str]:
    """Return numbers, days and months, in one way of writing."""
    written = {_number(each) for each in _NUMBER.findall(plain)}
    words = set(_WORD.findall(plain))
    return frozenset(
        written | {_NUMBERS[word] for word in words & _NUMBERS.keys()} | (words & _NAMED_TIMES)
    )


def _number(written: str) -> str:
    bare = written.replace(",", "")
    return bare.rstrip("0").rstrip(".") if bare.count(".") == 1 and "^" not in bare else bare


def _negations(words: Sequence[str]) -> int:
    return sum(word in _NEGATIONS or word.endswith("n't") for word in words)


def _to_embed(one: Unmarked, other: Unmarked) -> NeedsVectors:
    """Return what to embed, and what speaks against equal meanwhile."""
    stored, cut = _pieces(one.text)
    fresh, cut_too = _pieces(other.text)
    first, second = _plain(one.text.casefold()), _plain(other.text.casefold())
    words, others = _WORD.findall(first), _WORD.findall(second)
    short = max(len(words), len(others)) <= SHORT_WORDS
    objection = contradiction = None
    numbers, other_numbers = _numbers(first), _numbers(second)
    if numbers != other_numbers:
        objection = "numbers"
        if short and numbers - other_numbers and other_numbers - numbers:
            contradiction = "numbers"
    elif short and (_negations(words) % 2) != (_negations(others) % 2):
        objection = "negation"
        if _overlap(words, others) >= _SAME_WORDS:
            contradiction = "negation"
    elif short and (others_named := name_others(named(one.text), named(other.text))) is not None:
        objection = "names"
        if others_named:
            contradiction = "names"
    elif _marked(first) != _marked(second) or _below_zero(one.text) != _below_zero(other.text):
        objection = "marks"
    return NeedsVectors((*stored, *fresh), len(stored), cut or cut_too, objection, contradiction)


def _below_zero(text: str) -> set[str]:
    return set(_BELOW_ZERO.findall(text))


_MARKS = frozenset("*_#<>|~")


def _marked(plain: str) -> set[str]:
    """Return the words with marks that are no markdown's: names in code, operators."""
    return {word.strip(".,;:!?()\"'") for word in plain.split() if not _MARKS.isdisjoint(word)}


_SAME_WORDS = 0.6


def _overlap(words: Sequence[str], others: Sequence[str]) -> float:
    one, other = set(words), set(others)
    return len(one & other) / len(one | other)


def _pieces(text: str) -> tuple[list[str], bool]:
    """Cut a text so that the encoder reads all of each piece; tell whether the end is left out."""
    pieces: list[str] = []
    piece: list[str] = []
    size = 0
    for word in text.split():
        if piece and (len(piece) == PIECE_WORDS or size + len(word) > PIECE_CHARACTERS):
            pieces.append(" ".join(piece))
            piece, size = [], 0
            if len(pieces) == MAX_PIECES:
                return pieces, True
        piece.append(word[:PIECE_CHARACTERS])
        size += len(word) + 1
    return [*pieces, " ".join(piece)] if piece else pieces, False


def _nearness(ours: Sequence[Vector], theirs: Sequence[Vector]) -> float:
    """Return how near the piece is that is farthest from all of the other text's."""
    if not ours or not theirs:
        return 0.0
    cosines = [[_cosine(one, other) for other in theirs] for one in ours]
    there = [max(row) for row in cosines]
    back: list[float] = [max(column) for column in zip(*cosines, strict=True)]
    return min(sum(there) / len(there), sum(back) / len(back))


def _cosine(one: Vector, other: Vector) -> float:
    total: float = sum(a * b for a, b in zip(one, other, strict=True))
    return total
