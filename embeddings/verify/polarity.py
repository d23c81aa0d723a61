"""Does one text say the opposite of the other? Pure.

Negations and opposed words are flips. An odd number of them between two texts turns the question
round; an even number ("not pessimistic", "optimistic") is left to the verifier.
"""

import re
from typing import Final

from embeddings.verify.differences import Difference, reverses
from embeddings.verify.lists.grammar import NEGATIONS
from embeddings.verify.statement import Statement
from embeddings.verify.vocabulary import opposed_to_any

# Texts less close than this may say the same with other words and a negation.
_CLOSE: Final = 0.6
_NEAR: Final = 0.4
# Closer than this, "buy" for "sell" is no change of standpoint.
_ALIKE: Final = 0.75
_LESS: Final = frozenset({"less", "least", "fewer", "fewest"})
_DEGREE: Final = _LESS | {"more", "most", "many"}
# A negation in these says nothing about the matter asked.
_IDLE: Final = re.compile(
    r" (?:(?:whether )?or no(?:t|)"
    r"|not (?:only|just|sure|certain|clear|enough|to mention)"
    r"|if not|yes no|never mind"
    r"|why not $|no (?:idea|clue|matter|problem)|no(?:t|)"
    r" (?:more|less|fewer|later|earlier|longer) than"
    r"|(?:do|does|did|can|could) not (?:really )?"
    r"(?:know|understand|figure|remember|see|seem|tell|find"
    r"|get(?= (?:how|why|what|where|when|if|it|this|that) ))"
    r"|nothing (?:but|more)"
    r"|(?:is|does|are|do|was|did|could|would) not (?:it|they|you|there|that)) "
)


def negations(text: Statement) -> int:
    """Count the negations that say something."""
    if text.vocabulary.isdisjoint(NEGATIONS):
        return 0
    count = sum(word in NEGATIONS for word in text.words)
    return count - len(_IDLE.findall(text.joined))


def flips(apart: Difference) -> int:
    """Count the words of one text that are opposed to a word of the other."""
    return len(_flipped(apart))


def _flipped(apart: Difference) -> list[str]:
    keys = frozenset([item.word.key for item in apart.right])
    close = apart.closeness >= _ALIKE
    return [
        x.text
        for x in apart.left
        if opposed_to_any(x.word, keys) or (close and not x.word.converse.isdisjoint(keys))
    ]


def check_polarity(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse an odd number of flips."""
    denials, flipped = negations(a) - negations(b), _flipped(apart)
    if (denials + len(flipped)) % 2 == 0:
        return None
    if denials % 2 == 0:
        # "Least difficult" is "easiest", and "A is taller than B" is "B is shorter than A".
        lessened = _LESS.isdisjoint(a.words) != _LESS.isdisjoint(b.words)
        if (lessened and _DEGREE.isdisjoint(flipped)) or reverses(a, b, apart):
            return None
        return "antonym" if apart.closeness >= _NEAR else None
    if flipped or apart.closeness < _CLOSE:
        return None
    # What has fewer negations may say the same with a word like "stop" or "lack".
    alone = apart.right if denials > 0 else apart.left
    return None if any(item.word.complement for item in alone) else "negation"
