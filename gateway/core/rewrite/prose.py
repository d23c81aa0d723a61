"""The rules on texts: documents in order, white space in normal form, volatile values moved.

Law: each text is taken apart once, at the markers of its documents. Documents only change places;
the two other rules look only at what lies between them.
"""

from itertools import pairwise
from typing import NamedTuple

from gateway.core.rewrite import documents, volatile
from gateway.core.rewrite.detectors import finder
from gateway.core.rewrite.documents import Memory, Piece
from gateway.core.rewrite.outcome import Declined, DeclinedError, Rewrite, WhyNot
from gateway.core.rewrite.texts import Conversation, Text
from gateway.core.rewrite.whitespace import normal
from policies.decide import PrefixSettings

MOST_CHARACTERS = 2**20
"""Of all texts that are looked at; longer ones are left as they are."""

_Taken = list[list[Piece]]


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
    if sum(len(text.text) for text in given.texts) > MOST_CHARACTERS:
        why = tuple(Declined(rule, WhyNot.TOO_LARGE) for rule in rules_on(settings))
        return Prose((), None, (), why, ())
    taken: _Taken = [[Piece(text.text, is_document=False)] for text in given.texts]
    changes: list[Rewrite] = []
    declined: list[Declined] = []
    digests: list[bytes] = []
    block: str | None = None
    for rule in rules_on(settings):
        before = taken
        try:
            match rule:
                case Rewrite.DOCUMENTS:
                    taken, digests = _documents(taken, settings, memory)
                case Rewrite.WHITESPACE:
                    taken = _whitespace(given, taken)
                case _:
                    taken, block = _volatile(given, taken, settings)
        except DeclinedError as error:
            declined.append(Declined(rule, error.why))
        if taken is not before and _joined(taken) != _joined(before):
            changes.append(rule)
    texts = (
        Text(text.path, now)
        for text, now in zip(given.texts, _joined(taken), strict=True)
        if now != text.text
    )
    return Prose(tuple(texts), block, tuple(changes), tuple(declined), tuple(digests))


def _joined(taken: _Taken) -> list[str]:
    return ["".join(piece.text for piece in pieces) for pieces in taken]


def _documents(
    taken: _Taken, settings: PrefixSettings, memory: Memory
) -> tuple[_Taken, list[bytes]]:
    if settings.documents is None:
        return taken, []
    apart = [documents.pieces(pieces[0].text, settings.documents) for pieces in taken]
    if sum(piece.is_document for pieces in apart for piece in pieces) > documents.MOST:
        raise DeclinedError(WhyNot.TOO_MANY)
    ordered: _Taken = []
    digests: list[bytes] = []
    for pieces in apart:
        now, met = documents.in_order(pieces, settings.documents, memory)
        ordered.append(now)
        digests += met
    return ordered, digests


def _whitespace(given: Conversation, taken: _Taken) -> _Taken:
    turns = [text.path[:2] for text in given.texts]
    last = [turn != following for turn, following in pairwise((*turns, None))]
    return [
        [_normal(piece, ends=ends and piece is pieces[-1]) for piece in pieces]
        for pieces, ends in zip(taken, last, strict=True)
    ]


def _normal(piece: Piece, *, ends: bool) -> Piece:
    text = piece.text if piece.is_document else normal(piece.text, ends=ends)
    return piece if text is piece.text else Piece(text, is_document=False)


def _volatile(
    given: Conversation, taken: _Taken, settings: PrefixSettings
) -> tuple[_Taken, str | None]:
    moving = volatile.Moving(finder(settings.volatile, settings.patterns))
    now = [[_stable(piece, moving) for piece in pieces] for pieces in taken]
    block = moving.block()
    if block is not None:
        volatile.refuse_placeholders(given.heard)
    return now, block


def _stable(piece: Piece, moving: volatile.Moving) -> Piece:
    text = piece.text if piece.is_document else moving.without_values(piece.text)
    return piece if text is piece.text else Piece(text, is_document=False)
