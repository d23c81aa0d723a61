"""Is one text negated and the other not? Pure.

Only an odd number of negations between texts of the same words is sure: what has fewer of them may
say the same with an opposed word ("not pessimistic", "optimistic"), which is left to the verifier.
"""

import re
from typing import Final

from embeddings.verify.guards.reader import Reading, words_of

_NEGATIONS: Final = words_of(
    "not no non never none nobody nothing nowhere neither without hardly barely scarcely"
)
_CLOSE: Final = 0.8
# A negation in these says nothing about the matter asked.
_IDLE: Final = re.compile(
    r" (?:(?:whether )?or (?:do |does )?not?"
    r"|not (?:only|just|sure|certain|clear|enough|to mention)"
    r"|if not|yes no|never mind|why not $|no (?:idea|clue|matter|problem)"
    r"|not? (?:more|less|fewer|later|earlier|longer than)"
    r"|(?:do|does|did|can|could) not (?:really )?"
    r"(?:know|understand|figure|remember|recall|see|seem|tell|find|want|like"
    r"|get(?= (?:how|why|what|where|when|if|it|this|that) ))"
    r"|nothing (?:but|more)"
    r"|(?:is|does|are|do|was|did|could|would) not (?:it|they|you|there|that)) "
)
# Words that say no by themselves; so do those that begin like these.
_OPPOSED: Final = re.compile(
    r" (?:un|dis|in|im|il|ir|non|mis|anti)\w{3,}| \w+(?:less|free)\b"
    r"| (?:stop|lack|fail|miss|avoid|prevent|refus|reject|den[yi]|forbid|forbad|lost|lose|except"
    r"|exclud|ignor|skip|block|bann|illegal|wrong|bad|hard|difficult|trouble|problem|still|but"
    r"|only|if|unless|instead|rather|free|away|off|out|minus|zero|cancel|remov|broken|dead)\w*\b"
)


def count_negations(text: Reading) -> int:
    """Return how many negations say something about the matter asked."""
    joined = " " + " ".join(text.words) + " "
    count = 0
    if not text.vocabulary.isdisjoint(_NEGATIONS):
        count = sum(word in _NEGATIONS for word in text.words) - len(_IDLE.findall(joined))
    return count


def differ_in_negation(a: Reading, b: Reading, x: int, y: int, close: float) -> str | None:
    """Return "negation" if one text is negated, the other is not, and nothing explains it."""
    if (x - y) % 2 == 0 or close < _CLOSE:
        return None
    fewer, more = (a, b) if x < y else (b, a)
    rest = " " + " ".join(fewer.vocabulary - more.vocabulary)
    return None if _OPPOSED.search(rest) else "negation"
