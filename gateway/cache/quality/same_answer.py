"""Whether two answers to one question say the same: equal, different or unsure.

Law: an equal answer may be served in place of the other, and a different one counts against its
rule. So a doubt is always unsure. Two samples of one model differ in wording and in what they leave
out. They must agree in numbers, names, yes and no, tool calls and code.

``compare`` decides by the texts alone where it can. Else it returns the texts to embed, and their
``next`` takes the vectors.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from gateway.semantic.plain_text import PlainText, names_differ, strip_markdown


@dataclass(frozen=True, slots=True)
class Answer:
    """The content of a result. ``calls`` are names and arguments of tool calls."""

    text: str
    calls: tuple[str, ...]
    finish: tuple[str, ...]


def read_answer(result: Any) -> Answer | None:
    """Return the content of a complete result of any endpoint, None if its form is unknown."""
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
    # Text that does not parse is free text.
    with contextlib.suppress(orjson.JSONDecodeError, TypeError):
        parsed = orjson.loads(arguments)
        arguments = orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS).decode()
    return f"{given.get('name')}({arguments})"


class Outcome(StrEnum):
    """Whether the two answers say the same."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNSURE = "unsure"


EQUAL_COSINE = 0.9
"""From here on two answers are equal, if there is no objection."""
DIFFERENT_COSINE = 0.6
"""Below, they are different."""

_MAX_COSINE = 1.01
"""Of unit vectors, with a margin for rounding."""

SHORT_WORDS = 40
"""Up to this length each number, negation and name counts."""

PIECE_WORDS = 80
PIECE_CHARACTERS = 600
MAX_PIECES = 12
MAX_CHARACTERS = 20_000
"""Of an answer; longer ones are equal to the letter or unsure."""

Vector = Sequence[float]


class Judgement(NamedTuple):
    """An outcome, and its ground in one word."""

    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True)
class NeedsVectors:
    """Needs the vectors of ``texts``: the pieces of the stored answer, then of the fresh one."""

    texts: tuple[str, ...]
    stored: int
    """Number of the stored answer's pieces."""
    cut: bool
    """Whether the end of an answer is left out."""
    objection: str | None
    """Why they are not equal, however near they are."""
    contradiction: str | None
    """Why they are different, though they are near."""

    def next(self, vectors: Sequence[Vector] | None) -> Judgement:
        """Take the vectors, None if there are none."""
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
    one, other = strip_markdown(ours.text), strip_markdown(theirs.text)
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
    return " ".join(text.split()).strip(_ENDS)


_YES = {"yes", "yeah", "yep", "correct", "true", "indeed", "certainly", "absolutely"}
_NO = {"no", "nope", "incorrect", "false"}
_NEGATIONS = {
    *("not", "no", "never", "none", "cannot", "nobody", "nothing", "neither", "nor", "without")
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
    first = _WORD.match(plain)
    word = first[0] if first else ""
    return "yes" if word in _YES else "no" if word in _NO else None


def _numbers(plain: str) -> frozenset[str]:
    written = {_number(each) for each in _NUMBER.findall(plain)}
    words = set(_WORD.findall(plain))
    return frozenset(
        written | {_NUMBERS[word] for word in words & _NUMBERS.keys()} | (words & _NAMED_TIMES)
    )


def _number(written: str) -> str:
    number = written.replace(",", "")
    is_decimal = number.count(".") == 1 and "^" not in number
    return number.rstrip("0").rstrip(".") if is_decimal else number


def _negations(words: Sequence[str]) -> int:
    return sum(word in _NEGATIONS or word.endswith("n't") for word in words)


def _to_embed(one: PlainText, other: PlainText) -> NeedsVectors:
    """Return the texts to embed, with any objection to equal."""
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
        one_set, other_set = set(words), set(others)
        if len(one_set & other_set) / len(one_set | other_set) >= _SAME_WORDS:
            contradiction = "negation"
    elif short and (others_named := names_differ(one.text, other.text)) is not None:
        objection = "names"
        if others_named:
            contradiction = "names"
    elif _marked(first) != _marked(second) or _below_zero(one.text) != _below_zero(other.text):
        objection = "marks"
    return NeedsVectors((*stored, *fresh), len(stored), cut or cut_too, objection, contradiction)


def _below_zero(text: str) -> set[str]:
    return set(_BELOW_ZERO.findall(text))


_MARKS = frozenset("*_#<>|~")
_SAME_WORDS = 0.6


def _marked(plain: str) -> set[str]:
    """Return the words with marks that are not markdown: names in code, operators."""
    return {word.strip(".,;:!?()\"'") for word in plain.split() if not _MARKS.isdisjoint(word)}


def _pieces(text: str) -> tuple[list[str], bool]:
    """Cut a text into pieces that the encoder reads whole; tell whether the end is left out."""
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
    """Return the mean of each piece's best cosine, of the side where it is lower."""
    if not ours or not theirs:
        return 0.0
    cosines = [[_cosine(one, other) for other in theirs] for one in ours]
    best = [max(row) for row in cosines]
    best_back: list[float] = [max(column) for column in zip(*cosines, strict=True)]
    return min(sum(best) / len(best), sum(best_back) / len(best_back))


def _cosine(one: Vector, other: Vector) -> float:
    total: float = sum(a * b for a, b in zip(one, other, strict=True))
    return total
