"""The rules on texts: documents in order, white space in normal form, volatile values moved.

Laws: each text is cut once, at the markers of its documents. Documents only change places; the two
other rules apply only to the text between them. White space with a meaning stays: in a fenced block
of code, at the ends of lines of an indented one, and the two spaces of a line break in Markdown.
"""

from collections import deque
from itertools import islice, pairwise
from typing import NamedTuple

from gateway.prompts.outcome import Declined, NotRewritten, NotRewrittenError, Rewrite
from gateway.prompts.rewrite import documents, volatile
from gateway.prompts.rewrite.documents import Memory
from gateway.prompts.texts import Conversation, Text
from gateway.semantic.code import code_blocks
from policies.decision import PrefixSettings

_BREAK = "  "
_ENDS = frozenset(" \t\r")


def normal(text: str, *, ends: bool) -> str:
    """Return the text in normal form; ``ends``: no other text follows in its message."""
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


MAX_CHARACTERS = 2**20
"""Of all texts together; longer ones are left as they are."""

_Pieces = list[list[str]]
"""Of each text; each second one is a document."""


class Prose(NamedTuple):
    """The texts of a request after the rules."""

    texts: tuple[Text, ...]
    """Those that changed."""
    block: str | None
    changes: tuple[Rewrite, ...]
    declined: tuple[Declined, ...]
    digests: tuple[bytes, ...]
    """Of the documents, in their new order."""


def rules_on(settings: PrefixSettings) -> tuple[Rewrite, ...]:
    """Return the rules on texts that are on."""
    rules = (
        (Rewrite.DOCUMENTS, settings.documents),
        (Rewrite.WHITESPACE, settings.whitespace),
        (Rewrite.VOLATILE, settings.volatile or settings.patterns),
    )
    return tuple(rule for rule, on in rules if on)


def rewrite_texts(given: Conversation, settings: PrefixSettings, memory: Memory) -> Prose:
    """Apply the rules; one that is not sure changes nothing."""
    if not given.texts:
        return Prose((), None, (), (), ())
    if sum(len(text.text) for text in given.texts) > MAX_CHARACTERS:
        why = tuple(Declined(rule, NotRewritten.TOO_LARGE) for rule in rules_on(settings))
        return Prose((), None, (), why, ())
    texts: _Pieces = [[text.text] for text in given.texts]
    changes: list[Rewrite] = []
    declined: list[Declined] = []
    digests: list[bytes] = []
    block: str | None = None
    for rule in rules_on(settings):
        before = texts
        try:
            match rule:
                case Rewrite.DOCUMENTS:
                    before = _apart(texts, settings)
                    texts, digests = _documents(before, settings, memory)
                case Rewrite.WHITESPACE:
                    texts = _whitespace(given, texts)
                case _:
                    texts, block = _volatile(given, texts, settings)
        except NotRewrittenError as error:
            declined.append(Declined(rule, error.why))
        if texts != before:
            changes.append(rule)
    if not changes:
        return Prose((), None, (), tuple(declined), tuple(digests))
    joined = ["".join(pieces) for pieces in texts]
    changed = [
        Text(text.path, now)
        for text, now in zip(given.texts, joined, strict=True)
        if now != text.text
    ]
    return Prose(tuple(changed), block, tuple(changes), tuple(declined), tuple(digests))


def _apart(texts: _Pieces, settings: PrefixSettings) -> _Pieces:
    if settings.documents is None:
        return texts
    apart = [documents.pieces(pieces[0], settings.documents) for pieces in texts]
    if sum(len(pieces) // 2 for pieces in apart) > documents.MAX_DOCUMENTS:
        raise NotRewrittenError(NotRewritten.TOO_MANY)
    return apart


def _documents(
    texts: _Pieces, settings: PrefixSettings, memory: Memory
) -> tuple[_Pieces, list[bytes]]:
    if settings.documents is None:
        return texts, []
    ordered: _Pieces = []
    digests: list[bytes] = []
    for pieces in texts:
        now, met = documents.in_order(pieces, settings.documents, memory)
        ordered.append(now)
        digests += met
    return ordered, digests


def _whitespace(given: Conversation, texts: _Pieces) -> _Pieces:
    turns = [text.path[:2] for text in given.texts]
    now: _Pieces = []
    for pieces, turn, following in zip(texts, turns, (*turns[1:], None), strict=True):
        kept = list(pieces)
        last = len(pieces) - 1
        for index in range(0, last + 1, 2):
            if pieces[index]:
                kept[index] = normal(pieces[index], ends=index == last and turn != following)
        now.append(kept)
    return now


def _volatile(
    given: Conversation, texts: _Pieces, settings: PrefixSettings
) -> tuple[_Pieces, str | None]:
    """Return the texts with placeholders for volatile values, and the block with the values."""
    between = [piece for pieces in texts for piece in pieces[::2]]
    finder = volatile.finder(settings.volatile, settings.patterns)
    stable, block = volatile.move_values(between, finder)
    if block is None:
        return texts, None
    volatile.refuse_placeholders(given.heard)
    left = iter(stable)
    now: _Pieces = []
    for pieces in texts:
        kept = list(pieces)
        kept[::2] = islice(left, (len(pieces) + 1) // 2)
        now.append(kept)
    return now, block
