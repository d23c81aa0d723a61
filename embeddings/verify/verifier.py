"""The trained verifier: two texts in, the score that one answer fits both, or why there is none.

A small network reads every pair. Where a second, large one is installed, it reads the pairs that
the first does not refuse, and its score counts.

Laws: the order of the texts and the pairs scored beside them make no difference; what the networks
cannot read whole, or read as something else, has no score. A score is from 0 to 1 and finite. What
the first network refuses scores less than all that the second has read.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from embeddings.encoder.bert_graph import cross_encoder
from embeddings.encoder.model_files import ModelError
from embeddings.encoder.onnx import OnnxSession, Row, read_tokenizer
from embeddings.encoder.plain_bert import bert_shape
from embeddings.messages import Pair, Reason, Scored
from embeddings.verify.files import NetworkFiles, VerifierFiles, read_verifier, unreadable
from embeddings.verify.recipe import REFUSED, SPECIAL_TOKENS, pair_features

# No natural text has tokens this long on average.
_MOST_CHARACTERS_A_TOKEN: Final = 64
# A score of 1 would stay as it is, whatever the cosine says (recipe.weighed).
_MOST: Final = 1.0 - 2.0**-20
_WARMING: Final = ("How do I reset my password?", "How can I reset my password?")

_log = logging.getLogger(__name__)


class Verifier:
    """Loaded cross-encoders on the CPU, for any thread.

    `digest` identifies everything that shapes a score. `fault` says why a second network that is
    installed is not used.
    """

    def __init__(self, files: VerifierFiles, threads: int) -> None:
        self.name = files.name
        self.digest = files.digest
        self.max_tokens = files.first.max_tokens
        self.fault = files.fault
        self._tokenizer = read_tokenizer(files.tokenizer)
        self._cls, self._sep = self._special("[CLS]"), self._special("[SEP]")
        specials = self._tokenizer.get_added_tokens_decoder()
        # A text that spells `[SEP]` would begin another text, and words that the vocabulary lacks
        # would all be one.
        self._unreadable = frozenset(specials) | {self._special("[UNK]")}
        self._first = _session(files.first, threads)
        self._second = None if files.second is None else _session(files.second, threads)
        self._gate, self._first_weighs = files.gate, files.first_weighs

    def score(self, pairs: Sequence[Pair]) -> list[Scored]:
        """Return for each pair its score, or the reason for having none."""
        # One at a time: eight-bit activations share their scale with the rest of a batch, and four
        # pairs together take four times as long as one.
        return [self._scored(pair) for pair in pairs]

    def _scored(self, pair: Pair) -> Scored:
        try:
            tokens = [self._tokens(text) for text in pair]
            first, second = tokens
            if isinstance(first, Reason):
                return first
            if isinstance(second, Reason):
                return second
            if len(first) + len(second) + SPECIAL_TOKENS > self.max_tokens:
                return Reason.TEXT_TOO_LONG
            logit = self._logit(pair_features(first, second, self._cls, self._sep))
        except Exception:  # noqa: BLE001 - this one pair has no score, the next may have
            _log.exception("a pair could not be scored")
            return Reason.ERROR
        if not math.isfinite(logit):
            return Reason.ERROR
        return min(_sigmoid(logit), _MOST)

    def _logit(self, features: Row) -> float:
        first = float(self._first.run([features])[0])
        if self._second is None:
            return first
        if first < self._gate:
            return first - REFUSED
        return float(self._second.run([features])[0]) + self._first_weighs * first

    def _tokens(self, text: str) -> list[int] | Reason:
        if len(text) > self.max_tokens * _MOST_CHARACTERS_A_TOKEN:
            return Reason.TEXT_TOO_LONG
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not tokens:
            return Reason.EMPTY_TEXT
        return Reason.UNREADABLE_TEXT if self._unreadable.intersection(tokens) else tokens

    def _special(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise ValueError(f"the tokenizer knows no {token}")
        return int(number)


def _session(files: NetworkFiles, threads: int) -> OnnxSession:
    return OnnxSession(cross_encoder(bert_shape(files.config), files.weights), threads)


def load_verifier(directory: Path, threads: int, *, alone: bool = False) -> Verifier:
    """Load a verifier and warm it with one pair, `alone` without a second network.

    A second network that makes no usable scores is not used, and `fault` says so. Takes half a
    second, and another one for the second network. Raises ModelError.
    """
    files = read_verifier(directory, alone=alone)
    try:
        return _warmed(files, directory, threads)
    except ModelError as error:
        if files.second is None:
            raise
        first = replace(files, second=None, fault=f"{error}; the second network is not used")
        return _warmed(first, directory, threads)


def _warmed(files: VerifierFiles, directory: Path, threads: int) -> Verifier:
    try:
        verifier = Verifier(files, threads)
        (warmed,) = verifier.score([_WARMING])
    except Exception as error:  # damaged files raise whatever the library trips over first
        raise unreadable(directory, error) from error
    if isinstance(warmed, Reason):
        raise ModelError(f"the verifier in {directory} makes no usable scores")
    return verifier


def _sigmoid(logit: float) -> float:
    # Of a large number the exponential is no float.
    power = math.exp(-min(abs(logit), 700))
    return (1 if logit >= 0 else power) / (1 + power)
