"""As much of a text as the encoder surely reads.

Law: a text that the encoder cannot read whole has no vector, and one without fails all. So what
counts here is the most pieces that a word may be cut into, and not how many it usually is.
"""

import re

MOST_PIECES = 240
"""The encoder reads 256 with its marks."""
MOST_CHARACTERS = 600

_PIECE = re.compile(r"([A-Za-z]+)|[^\sA-Za-z]")
_LETTERS_A_PIECE = 3


def readable(text: str) -> str:
    """Return the beginning of a text that stands for it."""
    beginning = text.strip()[:MOST_CHARACTERS]
    pieces = 0
    for found in _PIECE.finditer(beginning):
        pieces += -(-len(found[1]) // _LETTERS_A_PIECE) if found[1] else 1
        if pieces > MOST_PIECES:
            return beginning[: found.start()]
    return beginning or "-"
