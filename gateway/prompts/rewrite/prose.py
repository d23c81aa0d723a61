"""The rules on texts: documents in order, white space in normal form, volatile values moved.

Law: each text is taken apart once, at the markers of its documents. Documents only change places;
the two other rules look only at what lies between them.

Line ends and white space at the end of lines and texts, in one form.

Law: white space that has a meaning stays. That is all of a fenced block of code, the spaces that
end lines of an indented one, and the two by which Markdown breaks a line.
"""

from collections import deque
from itertools import islice, pairwise
from typing import NamedTuple

from gateway.prompts.outcome import Declined, NotRewritten, NotRewrittenError, Rewrite
from gateway.prompts.rewrite import documents, volatile
from gateway.prompts.rewrite.detectors import finder
from gateway.prompts.rewrite.documents import Memory
from gateway.prompts.texts import Conversation, Text
from gateway.semantic.compare.fences import code_blocks
from policies.decision import PrefixSettings

_BREAK = "  "
_ENDS = frozenset(" \t\r")


def normal(text: str, *, ends: bool) -> str:
    """Return the text in normal form; ``ends`` tells that no other text follows in its message."""
    if not _may_change(text, ends=ends) or text.isspace():
        return text
    blocks = deque(code_blocks(text))
    # What closes a block of code ends a line of it: that line is left alone.
    ends = ends and not (blocks and blocks[-1].end >= len(text.rstrip(" \t\r\n")))
    lines = text.split("\n")
    at = 0
    for index, (line, following) in enumerate(pairwise(lines)):
        end = at + len(line)
        while blocks and blocks[0].end < at:
            blocks.popleft()
        if line[-1:] in _ENDS and not (blocks and blocks[0].start <= end):
            lines[index] = _normal_line(line, following)
        at = end + 1
    normalised = "\n".join(lines)
    return (ends and normalised.rstrip(" \t\r\n")) or normalised


def _may_change(text: str, *, ends: bool) -> bool:
    if ends and text[-1:].isspace():
        return True
    return "\n" in text and (" \n" in text or "\t\n" in text or "\r\n" in text)


def _normal_line(line: str, following: str) -> str:
    line = line.rstrip("\r")
    kept = line.rstrip(" \t\r")
    if kept and line.startswith(("    ", "\t")):
        return line
    breaks = kept and line.endswith(_BREAK) and following.strip()
    return kept + _BREAK if breaks else kept


MOST_CHARACTERS = 2**20
"""Of all texts that are looked at; longer ones are left as they are."""

_Taken = list[list[str]]
"""The pieces of each text; its documents are the second, the fourth and so on."""


class Prose(NamedTuple):
    """What the rules make of the texts of a request."""

    texts: tuple[Text, ...]
    """Those that changed."""
    block: str | None
    changes: tuple[Rewrite, ...]
    declined: tuple[Declined, ...]
    digests: tuple[bytes, ...]
    """Of the documents, as they stand now."""


def rules_on(settings: PrefixSettings) -> tuple[Rewrite, ...]:
    """Return the rules on texts that are on."""
    rules = (
        (Rewrite.DOCUMENTS, settings.documents),
        (Rewrite.WHITESPACE, settings.whitespace),
        (Rewrite.VOLATILE, settings.volatile or settings.patterns),
    )
    return tuple(rule for rule, on in rules if on)


def rewritten(given: Conversation, settings: PrefixSettings, memory: Memory) -> Prose:
    """Apply the rules; one that cannot be sure changes nothing."""
    if not given.texts:
        return Prose((), None, (), (), ())
    if sum(len(text.text) for text in given.texts) > MOST_CHARACTERS:
        why = tuple(Declined(rule, NotRewritten.TOO_LARGE) for rule in rules_on(settings))
        return Prose((), None, (), why, ())
    taken: _Taken = [[text.text] for text in given.texts]
    changes: list[Rewrite] = []
    declined: list[Declined] = []
    digests: list[bytes] = []
    block: str | None = None
    for rule in rules_on(settings):
        before = taken
        try:
            match rule:
                case Rewrite.DOCUMENTS:
                    before = _apart(taken, settings)
                    taken, digests = _documents(before, settings, memory)
                case Rewrite.WHITESPACE:
                    taken = _whitespace(given, taken)
                case _:
                    taken, block = _volatile(given, taken, settings)
        except NotRewrittenError as error:
            declined.append(Declined(rule, error.why))
        if taken != before:
            changes.append(rule)
    if not changes:
        return Prose((), None, (), tuple(declined), tuple(digests))
    joined = ["".join(pieces) for pieces in taken]
    texts = [
        Text(text.path, now)
        for text, now in zip(given.texts, joined, strict=True)
        if now != text.text
    ]
    return Prose(tuple(texts), block, tuple(changes), tuple(declined), tuple(digests))


def _apart(taken: _Taken, settings: PrefixSettings) -> _Taken:
    if settings.documents is None:
        return taken
    apart = [documents.pieces(pieces[0], settings.documents) for pieces in taken]
    if sum(len(pieces) // 2 for pieces in apart) > documents.MOST:
        raise NotRewrittenError(NotRewritten.TOO_MANY)
    return apart


def _documents(
    taken: _Taken, settings: PrefixSettings, memory: Memory
) -> tuple[_Taken, list[bytes]]:
    if settings.documents is None:
        return taken, []
    ordered: _Taken = []
    digests: list[bytes] = []
    for pieces in taken:
        now, met = documents.in_order(pieces, settings.documents, memory)
        ordered.append(now)
        digests += met
    return ordered, digests


def _whitespace(given: Conversation, taken: _Taken) -> _Taken:
    turns = [text.path[:2] for text in given.texts]
    now: _Taken = []
    for pieces, turn, following in zip(taken, turns, (*turns[1:], None), strict=True):
        kept = list(pieces)
        last = len(pieces) - 1
        for index in range(0, last + 1, 2):
            if pieces[index]:
                kept[index] = normal(pieces[index], ends=index == last and turn != following)
        now.append(kept)
    return now


def _volatile(
    given: Conversation, taken: _Taken, settings: PrefixSettings
) -> tuple[_Taken, str | None]:
    """Return the texts with placeholders for volatile values, and the block with the values."""
    between = [piece for pieces in taken for piece in pieces[::2]]
    stable, block = volatile.moved(between, finder(settings.volatile, settings.patterns))
    if block is None:
        return taken, None
    volatile.refuse_placeholders(given.heard)
    left = iter(stable)
    now: _Taken = []
    for pieces in taken:
        kept = list(pieces)
        kept[::2] = islice(left, (len(pieces) + 1) // 2)
        now.append(kept)
    return now, block
