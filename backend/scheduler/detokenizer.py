"""Tokens to text, incrementally: the concatenated deltas equal the decoding of the whole.

A token can end inside a multi-byte character. What is emitted is never taken back, so text waits
until the character is complete; U+FFFD appears only where the model truly broke off or produced
bytes that are no UTF-8.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class IncrementalDetokenizer(Protocol):
    """State of one choice's text."""

    def push(self, token: int) -> str:
        """Return the text that ``token`` completes, possibly empty."""
        ...

    def finish(self) -> str:
        """Return what still waits; an unfinished character becomes U+FFFD."""
        ...


class ByteLevelDetokenizer:
    """For byte-level BPE, where each token is a fixed string of bytes."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        """``bytes_of`` gives a token's bytes; empty for special tokens, which have no text."""
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """See IncrementalDetokenizer."""
        return self._decoder.decode(self._bytes_of(token))

    def finish(self) -> str:
        """See IncrementalDetokenizer."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For every other decoder: decode a short window of tokens and emit what became stable.

    The window keeps the tokens before the newest clean boundary as context, because decoders of
    SentencePiece models treat the first token of a text differently from the same token later.
    While the window ends in U+FFFD nothing is emitted: byte fallback decodes a run of bytes as a
    whole, so an unfinished character spoils those before it until it is complete.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """``decode`` turns tokens into text, leaving special tokens out."""
        self._decode = decode
        self._window: list[int] = []
        self._boundary = 0
        self._emitted = 0

    def push(self, token: int) -> str:
        """See IncrementalDetokenizer."""
        self._window.append(token)
        text = self._decode(self._window)
        delta = text[self._emitted :]
        if not delta or text.endswith(REPLACEMENT):
            return ""
        self._window = self._window[self._boundary :]
        self._boundary = len(self._window)
        self._emitted = len(self._decode(self._window))
        return delta

    def finish(self) -> str:
        """See IncrementalDetokenizer."""
        return self._decode(self._window)[self._emitted :]
