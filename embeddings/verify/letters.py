"""Is a letter that stands alone a label ("gate a", "the i flag") or a small word of grammar? Pure.

Law: in doubt it is a label. A label that was none costs a hit where the other text does not have
it; a label that was not seen serves the answer to another one.
"""

from collections.abc import Sequence
from typing import Final

from embeddings.verify.lists import words
from embeddings.verify.lists.grammar import FUNCTION
from embeddings.verify.lists.labels import LABELLED, LABELLED_VERBS, NUMBERED

AMBIGUOUS: Final = frozenset("adimst")
"""Letters that are small words as well: an article, a pronoun, what is left of a contraction."""

_DETERMINERS: Final = words("the a an my your his our their its")
# Behind an article stands a noun or what goes with one; of the small words only these do.
_NOUNS: Final = words("will can might must while near down no non not self us")
_MODALS: Final = words("can could will would shall should may might must")
_WITH_I: Final = _MODALS | words("am was have had having do did")
_WITHOUT_I: Final = words("is does has")
_BEFORE_I: Final = _WITH_I | words("need ought not were if")
_BEHIND_I: Final = _WITH_I | words("not never also too then so get got let")
_VERBS: Final = words("need want use just like own")
_AUXILIARY: Final = words("do does did")
_DOERS: Final = _MODALS | words("i you u we they me us lets gotta to please not and or then just")
# Behind these "a" is an article as far as can be told, and "i" who asks.
_SUBJECTS: Final = words("i you u we they")
_BEFORE_VERBS: Final = words("to please then just gotta lets not")
_DOING: Final = words("what who that")
_CLAUSES: Final = _BEFORE_I | words(
    "what when where why how who which whom whose that because since and or but while after before "
    "once so then than as whenever until unless though although"
)
_KEYS: Final = words("major minor flat sharp")
_AMOUNTS: Final = words(
    "second minute hour day night week month year mile litre liter gallon kilo pound ounce gram "
    "piece person lot bit few little couple while"
)
_REQUESTS: Final = words(
    "write make give create generate recommend suggest draft compose find show tell add order buy "
    "build describe explain design prepare send get need want do say use cancel call name"
)
_BEFORE_U: Final = words("can could would will do did are should have r if thank")
# Without the apostrophe: "what s", "i m", "they d".
_CONTRACTED: Final = {
    "m": words("i"),
    "d": words("i you he she we they"),
    "s": words("what how where who when it he she there let"),
}


def is_label(before: Sequence[str], letter: str, after: str) -> bool:
    """Tell whether one of the ambiguous letters is a label.

    `before`: the words of its sentence before it, in lower case, the last two at least. `after`:
    the next one, as written if it is a name, "" for the end of the sentence or a sign, "#" for a
    number or a quotation.
    """
    last = before[-1] if before else ""
    match letter:
        case "a":
            return last in _DETERMINERS or _no_article(after) or _labelled(before)
        case "i":
            return last in _DETERMINERS or _no_pronoun(last, after) or _numbered(before, after)
        case _:
            return last not in _CONTRACTED.get(letter, ())


def is_doubtful(before: Sequence[str], letter: str, after: str) -> bool:
    """Tell whether one that `is_label` takes for no label may be one: "serie a standings".

    Nobody knows all nouns; an article is what stands where no noun can have ended.
    """
    last, doer = before[-1] if before else "", before[-2] if len(before) > 1 else ""
    match letter:
        case "a":
            return after in _KEYS or not (after in _AMOUNTS or _opens_noun(doer, last))
        case "i":
            clause = not last or last in _CLAUSES or after in _VERBS
            asked = doer in _AUXILIARY and last not in FUNCTION
            return after in _KEYS or (not clause and (asked or after not in _BEHIND_I))
        case _:
            return False


def _opens_noun(doer: str, last: str) -> bool:
    """Tell whether no noun ends before an article: "is a", "i bought a", "write a"."""
    if not last or last in FUNCTION or last.endswith(("ing", "ed", "ly")) or doer in _SUBJECTS:
        return True
    return last not in LABELLED and (
        doer in _BEFORE_VERBS
        or doer.endswith("ly")
        or (not doer and last in _REQUESTS)
        # "What causes a rainbow".
        or (doer in _DOING and last.endswith("s"))
    )


def is_you(last: str, letter: str) -> bool:
    """Tell whether a letter is a pronoun in short: "can u"."""
    return letter == "u" and last in _BEFORE_U


def _no_article(after: str) -> bool:
    """Tell whether no noun can begin with what follows: "gate a is", "gate a and"."""
    if len(after) == 1:
        # "A t-shirt", "a 5 mile run".
        return after in {"a", "i"}
    return not after or (after in FUNCTION and after not in _NOUNS)


def _no_pronoun(last: str, after: str) -> bool:
    """Tell whether nobody says that of himself: "does i mean", "flag i is", "form i 9"."""
    if last == "does" or after in _WITHOUT_I:
        return True
    return after in ("", "#") and last not in _BEFORE_I


def _numbered(before: Sequence[str], after: str) -> bool:
    """Tell whether "i" is one of several: "class i licence", but not "the class i missed"."""
    if after in FUNCTION:
        return after not in _BEHIND_I and _labelled(before)
    return bool(before) and before[-1] in NUMBERED and not (after in _VERBS or after.endswith("ed"))


def _labelled(before: Sequence[str]) -> bool:
    """Tell whether the word before goes by letters, and nobody does it: "to plan a trip"."""
    if not before:
        return False
    last, doer = before[-1], before[-2] if len(before) > 1 else ""
    if doer in _AUXILIARY and last not in FUNCTION and not last.endswith("ing"):
        # "Does kiosk a open": between a subject and its verb stands no article.
        return True
    return last in LABELLED and (last not in LABELLED_VERBS or doer not in ("", *_DOERS))
