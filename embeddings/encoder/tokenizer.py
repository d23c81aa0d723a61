"""Tokenizers of models, each read once.

Encoder and verifier mostly have the same vocabulary, which takes 10 MB each time that it is read.
"""

from functools import lru_cache
from threading import Lock
from typing import Final

from tokenizers import Tokenizer

_MODELS: Final = 2
_reading: Final = Lock()


def read_tokenizer(text: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, which pads and cuts nothing; do not change it.

    Any thread may use it. Raises what the library raises for a damaged file.
    """
    with _reading:  # two models are loaded at a time
        return _read(text)


@lru_cache(_MODELS)
def _read(text: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
