"""First safety net in front of a semantic hit: do two texts ask for the same answer? Pure.

Law: whatever one text says and the other does not say in the same place is a disagreement, unless
it is known to make no difference. Similar vectors do not count here: numbers, negations, names and
roles hardly move a sentence vector, and they are what changes an answer. So the check refuses many
true paraphrases and accepts the plain ones: another question frame, other spelling, politeness.
If these rules change, raise ``calibration.RULES``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from embeddings.verify.lexicon import ANTONYMS, OPPOSING_ENDS, OPPOSING_PREFIXES
from embeddings.verify.lexing import lex
from embeddings.verify.reading import Kind, Token, read
from embeddings.verify.single_letters import letters_differ

_ORDER = "order"
_ANTONYM = "antonym"
# What stands before an antonym in importance; the other kinds come after it.
_PLAIN_KINDS = (Kind.CODE, Kind.QUOTED, Kind.NUMBER, Kind.UNIT, Kind.NEGATION)


def agree(asked: str, stored: str) -> str | None:
    """Return None when an answer to `stored` may be served to `asked`, else the reason against it.

    The reason is one word: code, quoted, number, unit, negation, antonym, question, tense,
    comparison, person, relation, name, symbol, words (other words differ) or order (the same words
    in another order). Symmetric: `agree(a, b) is None` exactly when `agree(b, a) is None`.
    """
    if asked.strip() == stored.strip():
        return None
    left, right = read(asked), read(stored)
    if not left or not right:
        return Kind.WORD.value
    if len(left) == len(right) and all(map(_same, left, right)):
        return Kind.NAME.value if letters_differ(lex(asked), lex(stored)) else None
    return _reason(left, right)


def _same(a: Token, b: Token) -> bool:
    if a.form == b.form:
        return _otherwise_meant(a, b) is None
    return (a.gerund and b.form in _bases(a.form)) or (b.gerund and a.form in _bases(b.form))


def _otherwise_meant(a: Token, b: Token) -> Kind | None:
    """Return why equal words differ: "my account", "an account"; "Python", "a python"."""
    before = {a.before, b.before}
    if "my" in before and not before <= {"my", "the"}:
        return Kind.PERSON
    names = {a.kind is Kind.NAME, b.kind is Kind.NAME}
    named = a if a.kind is Kind.NAME else b
    common = b if named is a else a
    if len(names) == 2 and common.cased and common.before == "a" != named.before:
        return Kind.NAME
    return None


def _bases(gerund: str) -> set[str]:
    """Return the verbs whose -ing form this may be."""
    if len(gerund) < 5 or not gerund.endswith("ing"):
        return set()
    base = gerund.removesuffix("ing")
    bases = {base, base + "e"}
    if base[-1] == base[-2]:
        bases.add(base[:-1])
    return bases


def _reason(left: Sequence[Token], right: Sequence[Token]) -> str:
    only_left, only_right = _beyond(left, right), _beyond(right, left)
    if not only_left and not only_right:
        meant = [
            kind for pair in zip(left, right, strict=True) if (kind := _otherwise_meant(*pair))
        ]
        in_order = all(a.form == b.form for a, b in zip(left, right, strict=True))
        return meant[0].value if in_order and meant else _ORDER
    kinds = {token.kind for token in (*only_left, *only_right)}
    for kind in _PLAIN_KINDS:
        if kind in kinds:
            return kind.value
    if any(_opposed(a.form, b.form) for a in only_left for b in only_right):
        return _ANTONYM
    return next(kind.value for kind in Kind if kind in kinds)


def _beyond(tokens: Iterable[Token], others: Iterable[Token]) -> list[Token]:
    left_over = Counter(token.form for token in others)
    beyond = []
    for token in tokens:
        if left_over[token.form]:
            left_over[token.form] -= 1
        else:
            beyond.append(token)
    return beyond


def _opposed(a: str, b: str) -> bool:
    if (a, b) in ANTONYMS:
        return True
    short, long = sorted((a, b), key=len)
    if any(long == prefix + short for prefix in OPPOSING_PREFIXES):
        return True
    # enable and disable, useful and useless
    if {a[:2], b[:2]} == {"en", "di"} and a.removeprefix("en") == b.removeprefix("dis"):
        return True
    if {a[:2], b[:2]} == {"en", "di"} and b.removeprefix("en") == a.removeprefix("dis"):
        return True
    full, less = OPPOSING_ENDS
    return any(
        x.endswith(full) and y.endswith(less) and x.removesuffix(full) == y.removesuffix(less)
        for x, y in ((a, b), (b, a))
    )
