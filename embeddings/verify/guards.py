"""Stands before the trained verifier: refuses what is certainly or probably another question. Pure.

Law: a guard refuses only for a difference that it can name; ordinary rewording (other words, active
for passive, clauses moved) is left to the verifier. Every guard is symmetric. How much a difference
proves depends on how close two texts are otherwise: one word more in an equal sentence is another
question, in a sentence of other words it is a rewording.
"""

from collections.abc import Callable
from typing import Final

from embeddings.verify.asking import check_question
from embeddings.verify.connectives import check_limits, check_small_words
from embeddings.verify.counts import check_numbers
from embeddings.verify.demands import check_demands
from embeddings.verify.differences import Difference, difference
from embeddings.verify.entities import check_kinds, check_names
from embeddings.verify.exchanges import check_exchanges
from embeddings.verify.focus import check_focus
from embeddings.verify.plain_differences import check_words
from embeddings.verify.polarity import check_polarity
from embeddings.verify.roles import check_roles
from embeddings.verify.single_letters import check_letters
from embeddings.verify.statement import Statement, state
from embeddings.verify.strings import check_formulas, check_strings

VERSION: Final = 7
"""Raise it when other pairs pass: a calibration is made of those that do."""

_Check = Callable[[Statement, Statement, Difference], str | None]
# What is surest comes first: the first to refuse gives the reason.
_CHECKS: Final[tuple[_Check, ...]] = (
    check_strings,
    check_numbers,
    check_formulas,
    check_names,
    check_polarity,
    check_kinds,
    check_limits,
    check_question,
    check_focus,
    check_demands,
    check_small_words,
    check_exchanges,
    check_roles,
    check_letters,
    check_words,
)
REASONS: Final = frozenset(
    {"symbol", "quoted", "number", "unit", "name", "negation", "antonym", "kind", "quantifier"}
    | {"question", "person", "relation", "tense", "modality", "roles", "added", "replaced", "words"}
)
"""All that `guard` may say; embeddings/README.md tells what each means."""


def guard(asked: str, stored: str) -> str | None:
    """Return why an answer to `stored` may not be served to `asked`, None to leave it open.

    Symmetric: the reason is the same the other way round.
    """
    if asked.strip() == stored.strip():
        return None
    a, b = state(asked), state(stored)
    if _is_empty(a) or _is_empty(b):
        return "words"
    apart = difference(a, b)
    return next((reason for check in _CHECKS if (reason := check(a, b, apart))), None)


def _is_empty(text: Statement) -> bool:
    return not text.words
