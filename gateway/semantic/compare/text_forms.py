"""Unicode forms and proper names: what two texts are compared by.

Law of ``compatible``: NFKC, but a superscript, subscript, circled figure or fraction stays apart
from the figures beside it (``10⁶`` is ``10^6``, not ``106``). Time is linear in the text.

Law of ``name_others``: a capital is a weak sign of a name, as German nouns, headings, buttons and
shouting have it too. So names that only one text has are a doubt. They are a contradiction only
if the rest is English and nearly the same, and neither name is a kind (``a Swede``), shouted, or a
spelling of the other.
"""

import re
import unicodedata
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

_STRETCH = re.compile(r"\S{1,256}|\s+")
"""Bounded, as the marks of a letter are sorted in time that is quadratic in their number."""
_HIGH, _LOW, _FRACTION, _OTHER = "<super>", "<sub>", "<fraction>", "<compat>"
_PLAIN = {"", "<wide>", "<narrow>", "<font>", "<noBreak>"}
_ONE_TERM = re.compile(r"[+\u2212-]?\w+")
_SLASH = str.maketrans("\u2044", "/")


def compatible(text: str) -> str:
    """Return the text with one form for each letter."""
    if text.isascii():
        return text
    written: list[str] = []
    before, former = "", ""
    for kind, letters in groupby(text, _kind):
        plain = _written("".join(letters), kind)
        written += _between(before, plain[:1], former, kind), plain
        before, former = plain[-1:], kind
    return "".join(written)


def _kind(letter: str) -> str:
    """Return the form of a letter, empty for an ordinary one."""
    tag = unicodedata.decomposition(letter).partition(">")[0]
    kind = f"{tag}>" if tag.startswith("<") else ""
    if kind in _PLAIN:
        return ""
    if kind in (_HIGH, _LOW, _FRACTION):
        return kind
    plain = unicodedata.normalize("NFKC", letter)
    return _OTHER if any(map(str.isdigit, plain)) else ""


def _written(letters: str, kind: str) -> str:
    if kind in (_FRACTION, _OTHER):
        parts = (unicodedata.normalize("NFKC", letter) for letter in letters)
        return "_".join(parts).translate(_SLASH)
    stretches = _STRETCH.findall(letters)
    plain = "".join(unicodedata.normalize("NFKC", stretch) for stretch in stretches)
    if kind != _HIGH:
        return plain
    return f"^{plain}" if _ONE_TERM.fullmatch(plain) else f"^({plain})"


def _between(before: str, after: str, former: str, kind: str) -> str:
    if former == _HIGH and after.isalnum():
        return " "
    if before.isdigit() and after.isdigit() and (former or kind):
        return " " if kind == _FRACTION else "_"
    return ""


_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_BEGINS = re.compile(r"[.!?:;\u2026\n\"\u201e\u00ab(\[|>]|\s-+\s")
"""Between two words: the second has a capital in any case."""
_TITLES = {"mr", "mrs", "ms", "dr", "prof", "st"}
_ENGLISH = {
    *("the", "is", "are", "it", "of", "by", "and", "to", "from", "with", "that", "this", "has"),
    *("have", "you", "your", "we", "they", "their", "its", "called", "named", "wrote", "written"),
}
"""None is a German word: German alone gives nouns a capital."""
_ARTICLES = {"a", "an"}

SAME_REST = 0.6
"""Share of other words in common, from which on two texts differ in the names alone."""
SAME_SPELLING = 0.6
"""Kiev and Kyiv, Jon and John."""
MAX_LETTERS = 64
MAX_PAIRS = 64
"""Of names whose spellings are compared, in time that is cubic in the letters."""


@dataclass(frozen=True, slots=True)
class Named:
    """The words of a text, folded, and its names."""

    words: frozenset[str]
    ordinary: frozenset[str]
    """Written in lower case somewhere."""
    names: frozenset[str]
    surely: frozenset[str]
    """Names that are neither shouted nor kinds."""


def named(text: str) -> Named:
    """Find the words whose capital is not that of a sentence's beginning."""
    words: set[str] = set()
    ordinary: set[str] = set()
    names: set[str] = set()
    surely: set[str] = set()
    before, end = "", 0
    for found in _WORD.finditer(text):
        word = found[0].removesuffix("'s")
        folded = word.casefold()
        words.add(folded)
        if word[0].islower():
            ordinary.add(folded)
        elif _is_capital(word) and before and not _begins(text[end : found.start()], before):
            names.add(folded)
            if not word.isupper() and before.casefold() not in _ARTICLES:
                surely.add(folded)
        before, end = found[0], found.end()
    return Named(frozenset(words), frozenset(ordinary), frozenset(names), frozenset(surely))


def _is_capital(word: str) -> bool:
    if len(word) == 1 or word.startswith("I'") or word.casefold() in _TITLES:
        return False
    return word[0].isupper()


def _begins(between: str, before: str) -> bool:
    if between.strip() == "." and (before.casefold() in _TITLES or len(before) == 1):
        return False
    return _BEGINS.search(between) is not None


def name_others(one: Named, other: Named) -> bool | None:
    """Return True where two texts name different things, False in doubt, None where they agree."""
    ordinary = one.ordinary | other.ordinary
    ours, theirs = one.names - ordinary, other.names - ordinary
    if ours <= other.words and theirs <= one.words:
        return None
    if not ours or not theirs or ours & other.words or theirs & one.words:
        return False
    if not (ours <= one.surely and theirs <= other.surely):
        return False
    rest, other_rest = one.words - ours, other.words - theirs
    if not rest & other_rest & _ENGLISH:
        return False
    if len(rest & other_rest) < SAME_REST * len(rest | other_rest):
        return False
    if len(ours) * len(theirs) > MAX_PAIRS:
        return False
    return not any(_alike(mine, yours) for mine in ours for yours in theirs)


def _alike(one: str, other: str) -> bool:
    if max(len(one), len(other)) > MAX_LETTERS:
        return True  # too long to compare
    return SequenceMatcher(None, one, other, autojunk=False).ratio() >= SAME_SPELLING
