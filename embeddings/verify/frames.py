"""The frame of a question: what kind of answer it asks for, apart from what it asks about.

"How do I ...", "How can I ...", "how to ..." and "What is the way to ..." are one frame; "Can I
...", "Should I ..." and "Why do I ..." are three others. Words of politeness before the question
are no part of it.
"""

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Frame:
    """How a sentence starts.

    `question` names the frame, None for a statement; `words` of the sentence make it up, polite
    words included; `gerund` tells that a verb in -ing follows ("a way of resetting"); `mine` that
    "my" says no more than "the" ("How do I reset my password?").
    """

    question: str | None
    words: int
    gerund: bool = False
    mine: bool = False


HOW_TO: Final = "how-to"
CAN_I: Final = "can-i"
MUST_I: Final = "must-i"

_ASKS: Final = r"(?=(?:how|what|which|who|whom|whose|when|where|why)\b)"
_POLITE: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:hi|hello|hey|hiya|greetings|please|kindly|thanks|thank you|sorry|excuse me)\b ?",
        r"(?:so|well|ok|okay) " + _ASKS,
        r"(?:can|could|would|will) (?:you|someone|anyone|anybody|somebody) (?:please |kindly )?"
        r"(?:tell|show|teach|explain to|explain|advise|inform) (?:me |us )?(?:please )?" + _ASKS,
        r"(?:tell|show|teach|explain to) (?:me|us) (?:please )?" + _ASKS,
        r"i (?:want|need|wish|would like|would love) to (?:know|understand|find out|ask) " + _ASKS,
        r"i (?:am|was) (?:just )?wondering " + _ASKS,
        r"i wonder " + _ASKS,
        r"(?:do|does) (?:you|anyone|anybody|someone) (?:happen to )?know " + _ASKS,
        r"any idea " + _ASKS,
        r"(?:may|can|could) i ask (?:you )?" + _ASKS,
    )
)
_SELF: Final = r"(?:i|we)"
_GOOD: Final = r"(?:best|right|correct|proper|good|recommended|usual)"
_WAYS: Final = (
    r"(?:ways?|methods?|steps?|procedures?|process|processes|instructions?)"
    r"(?: (?:needed|required|necessary))?"
)
_LINK: Final = r"(?P<link>to|for|of)"
_NEED: Final = r"(?:need to |have to )?"
_TAKE: Final = r"(?:take|follow)"
_HOW_TO: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"how (?:do|can|could|would|should|might|may|shall) {_SELF}(?: (?:go about|manage to))?\b",
        r"how (?:does|can|could|would|should) (?:one|someone|somebody|anyone)\b",
        r"how to\b",
        r"how (?:is it possible|am i able|are we able|would i be able|will i be able) to\b",
        rf"what (?:is|are|would be) (?:(?:the|a|some|my) )?(?:{_GOOD} )*{_WAYS} {_LINK}\b",
        rf"what steps? (?:do|should|must|can|would) {_SELF} {_NEED}{_TAKE}(?: in order)? to\b",
        rf"what (?:do|should|must|can) {_SELF} {_NEED}do (?:in order )?to\b",
        rf"(?:the )?(?:{_GOOD} )?{_WAYS} {_LINK}\b",
    )
)
_CAN: Final = re.compile(
    rf"(?:(?:can|could) {_SELF}|is it possible (?:for (?:me|us) )?to|(?:am i|are we) able to"
    r"|(?:is|are) there (?:a|any|some) ways? (?:to|for (?:me|us) to))\b"
)
_MUST: Final = re.compile(
    rf"(?:must {_SELF}|do {_SELF} (?:have|need) to|(?:am i|are we) required to"
    r"|is it (?:necessary|required|mandatory)(?: for (?:me|us))? to)\b"
)
_AUXILIARIES: Final = {
    "be": "am is are",
    "was": "was were",
    "do": "do does",
    "did": "did",
    "have": "have has",
    "had": "had",
    "can": "can",
    "could": "could",
    "will": "will shall",
    "would": "would",
    "should": "should",
    "must": "must",
    "may": "may might",
}
_AUXILIARY_OF: Final = {
    word: name for name, words in _AUXILIARIES.items() for word in words.split()
}
_ASKING: Final = {
    word: word for word in ("how", "what", "which", "who", "whose", "when", "where", "why")
} | {"whom": "who"}


def frame(words: str) -> Frame:
    """Read the frame off a sentence, given as lower-case words with single spaces between."""
    start = _polite(words)
    rest = words[start:]
    for pattern in _HOW_TO:
        found = pattern.match(rest)
        if found:
            gerund = found.groupdict().get("link") in {"for", "of"}
            return Frame(HOW_TO, _count(words, start + found.end()), gerund, mine=True)
    for name, pattern in ((CAN_I, _CAN), (MUST_I, _MUST)):
        found = pattern.match(rest)
        if found:
            return Frame(name, _count(words, start + found.end()))
    skipped = _count(words, start)
    first, second = (*rest.split(maxsplit=2), "", "")[:2]
    if first == "how" and second == "come":
        return Frame("why", skipped + 2)
    if first in _ASKING:
        asking = _ASKING[first]
        if second in _AUXILIARY_OF:
            return Frame(f"{asking} {_AUXILIARY_OF[second]}", skipped + 2)
        return Frame(asking, skipped + 1)
    if first in _AUXILIARY_OF:
        return Frame(_AUXILIARY_OF[first], skipped + 1)
    return Frame(None, skipped)


def _polite(words: str) -> int:
    start = 0
    while found := next((x for p in _POLITE if (x := p.match(words, start))), None):
        start = found.end()
    return start


def _count(words: str, end: int) -> int:
    return len(words[:end].split())
