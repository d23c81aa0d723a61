"""The rules on texts: documents in order, white space in normal form, volatile values moved.

Law: each text is taken apart once, at the markers of its documents. Documents only change places;
the two other rules look only at what lies between them.
"""

from itertools import islice
from typing import NamedTuple

from gateway.core.outcome import Declined, NotRewritten, NotRewrittenError, Rewrite
from gateway.core.rewrite import documents, volatile
from gateway.core.rewrite.detectors import finder
from gateway.core.rewrite.documents import Memory
from gateway.core.rewrite.texts import Conversation, Text
from gateway.core.rewrite.whitespace import normal
from policies.decide import PrefixSettings

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
