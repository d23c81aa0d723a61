"""The words that the shipped network reads whole: the common ones, as its tokenizer has them."""

import json
from functools import cache
from pathlib import Path
from typing import Final

_TOKENIZER: Final = Path(__file__).parent / "model" / "tokenizer.json"


@cache
def common_words() -> frozenset[str]:
    """Return the words. If the file is missing or damaged, there are none, and all are rare."""
    try:
        pieces = json.loads(_TOKENIZER.read_text(encoding="utf-8"))["model"]["vocab"]
        return frozenset(piece for piece in pieces if piece.isalpha())
    except (OSError, ValueError, LookupError, TypeError):
        return frozenset()
