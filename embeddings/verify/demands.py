"""What is to be done for who asks: explain a word, list sorts, translate a text, name a time. Pure.

Two texts about one thing may want different things of it. Only what is asked for in so many words
counts; the other text must ask for something else just as plainly.
"""

import re
from collections.abc import Mapping
from typing import Final

from embeddings.verify.asking import asked
from embeddings.verify.differences import Difference
from embeddings.verify.lists import words
from embeddings.verify.lists.grammar import ADDABLE
from embeddings.verify.statement import Item, Statement

_NEAR: Final = 0.3
_CLOSE: Final = 0.6
_EQUAL: Final = 0.8
# A longer text tells of a start and an end by the way.
_LONG: Final = 40
# What is asked for, how that is said, and what else may say it.
_WANTED: Final[Mapping[str, tuple[re.Pattern[str], re.Pattern[str]]]] = {
    name: (
        re.compile(f" (?:{says}) ".replace("\n", "")),
        re.compile(f" (?:{accounts}) ".replace("\n", "")),
    )
    for name, says, accounts in (
        (
            "meaning",
            """what (?:does|do|did) (?:\\S+ ){1,8}mean(?! when| if| that| for)
|(?:meaning|definition) of(?! that| this| it)|what is meant by|define""",
            """mean\\w*|defin\\w*|explain\\w*|underst\\w*|interpret\\w*|descri\\w*|called
|stands? for|is a""",
        ),
        (
            "fate",
            "(?:what|whatever) (?:happens|happened|will happen|becomes|became) (?:to|of)",
            "happen\\w*|becom\\w*|became|ends? up|after\\w*|once|if|works?|handled|treated",
        ),
        (
            "uses",
            "what (?:can|could|should|do|to) (?:(?:i|we|you|one) )?(?:do|make|cook) (?:with|from)",
            "us(?:e|es|ed|ing)|turn|repurpose|reuse|handle|deal|with|from|best",
        ),
        (
            "sorts",
            """(?:what|which|how many) (?:\\S+ )?(?:types|kinds|sorts|varieties|categories)
|(?:list|name) (?:\\S+ ){0,2}(?:types|kinds|sorts)""",
            """types?|kinds?|sorts?|varieties|categor\\w+|classif\\w+|class\\w*|differ\\w*
|distinguish""",
        ),
        (
            "norm",
            """(?:what|which) (?!to |do |i |we |you )(?:\\S+ ){1,3}should
 (?:my|the|an?|it|its|our|your)""",
            """should|ought|right|recommended|normal|ideal|correct|proper|suppose\\w*|need\\w*
|what|which""",
        ),
    )
}  # fmt: skip
_OTHERWISE: Final = words("how why when where who duration amount frequency advice")
_DOING: Final = re.compile(
    r" (?:what (?:should|can|must|do|to) (?:(?:i|we|you) )?do (?:if|when|after|about|against)) "
)
_TAKES: Final = re.compile(" how long (?:(?:do|does|did|will|would) (?:it|that) take|to) ")
_LASTS: Final = words("valid validity expire expires expiry expiration good keep keeps fresh")
_MUST: Final = re.compile(
    r" (?:(?:do|does|did|will|would) \S+ (?:\S+ )?(?:have|need) to"
    r"|must (?:i|we|he|she|they|you|my)|(?:am|are|is) \S+ (?:\S+ )?(?:required|obliged|forced) to) "
)
_MAY: Final = re.compile(
    r" (?:(?:can|may) (?:i|we|he|she|they|you|my)"
    r"|(?:am|are|is) \S+ (?:\S+ )?(?:allowed|permitted) to) "
)
_STARTS: Final = words("start starts begin begins open opens commence opening starting beginning")
_ENDS: Final = words("end ends close closes finish finishes shut shuts closing ending over")
_STILL: Final = words("until till late stay stays")
_TASKS: Final = {
    verb: task
    for task, verbs in {
        "translate": "translate",
        "shorten": "summarise summarize shorten condense abridge",
        "correct": "correct fix proofread",
        "rewrite": "rewrite rephrase paraphrase reword put turn",
        "explain": "explain",
        "list": "list enumerate",
        "compare": "compare",
    }.items()
    for verb in words(verbs)
}
# What these do to a text given with them no other of them does.
_TEXTUAL: Final = frozenset({"translate", "shorten", "correct", "rewrite"})
_MADE: Final = {
    "correct": re.compile(" (?:gramm\\w*|mistakes?|errors?|correct\\w*|spelling) "),
    "shorten": re.compile(" (?:short\\w*|concise\\w*|brief\\w*|summar\\w*|fewer) "),
    "translate": re.compile(
        " (?:language|\\w+ese|\\w+ish|french|german|italian|russian|hindi|arabic) "
    ),
}
_AUXILIARY: Final = "(?:is|are|am|was|were|do|does|did|will|would|should|can|could)"
# Who the money goes to: "lawyers charge" and "lawyers pay", "lawyers are paid".
_TAKEN: Final = re.compile(
    rf" how much {_AUXILIARY} ((?:\S+ ){{1,4}}?)(?:charge|cost|pay) (?!off|back|attention)"
)
_PAID: Final = re.compile(rf" how much {_AUXILIARY} ((?:\S+ ){{1,4}}?)(?:(?:be |get )?paid|earn) ")
_LEAD: Final = words("please can could would you kindly hey hi hello just now i want need to")
_LEAD_LENGTH: Final = 6


def check_demands(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse texts that want different things of what they are about."""
    if _other_task(a, b):
        return "question"
    if a.payload != b.payload and a.payload and b.payload and _textual(a) and _textual(b):
        return "quoted"
    if _otherwise_counted(a, b, apart):
        return "unit"
    if apart.closeness < _NEAR and not (_quotes(a, b) or _quotes(b, a)):
        return None
    if _wants_other(a, b) or _wants_other(b, a) or _lasts_or_takes(a, b) or _other_end(a, b):
        return "question"
    if _taken_or_paid(a, b) or _taken_or_paid(b, a):
        return "question"
    return "modality" if apart.closeness >= _EQUAL and _must_or_may(a, b) else None


def _quotes(a: Statement, b: Statement) -> bool:
    """Tell whether one text quotes what the other says."""
    return a.payload != "" and f" {a.payload} " in b.joined


def _wants_other(a: Statement, b: Statement) -> bool:
    """Tell whether one text plainly wants what the other plainly does not."""
    return any(
        says.search(a.joined)
        and not says.search(b.joined)
        and not accounts.search(b.joined)
        and not _otherwise(b, name).isdisjoint(_OTHERWISE)
        for name, (says, accounts) in _WANTED.items()
    )


def _otherwise(text: Statement, name: str) -> frozenset[str]:
    if name == "meaning" and _DOING.search(text.joined):
        return frozenset({"advice"})
    kinds = asked(text)
    if "what" in kinds:
        return frozenset()
    return kinds - {"where"} if name == "fate" else kinds & {"how"} if name == "norm" else kinds


def _lasts_or_takes(a: Statement, b: Statement) -> bool:
    return any(
        _TAKES.search(x.joined) is not None
        and " how long " in y.joined
        and "take" not in y.vocabulary
        and _LASTS.isdisjoint(x.vocabulary)
        and not _LASTS.isdisjoint(y.vocabulary)
        for x, y in ((a, b), (b, a))
    )


def _other_end(a: Statement, b: Statement) -> bool:
    """Tell whether one text asks when something starts, and the other when something ends."""
    if len(a.words) + len(b.words) > _LONG:
        return False
    return any(
        not _STARTS.isdisjoint(x.vocabulary)
        and _ENDS.isdisjoint(x.vocabulary)
        and _STILL.isdisjoint(x.vocabulary)
        and not _ENDS.isdisjoint(y.vocabulary)
        and _STARTS.isdisjoint(y.vocabulary)
        and "when" in asked(x) & asked(y)
        for x, y in ((a, b), (b, a))
    )


def _taken_or_paid(a: Statement, b: Statement) -> bool:
    """Tell whether one text asks what somebody charges, and the other what the same are paid."""
    taken, paid = _TAKEN.search(a.joined), _PAID.search(b.joined)
    return taken is not None and paid is not None and taken[1] == paid[1]


def _must_or_may(a: Statement, b: Statement) -> bool:
    left, right = (
        (_MUST.search(x.joined) is not None, _MAY.search(x.joined) is not None) for x in (a, b)
    )
    return (
        left in {(True, False), (False, True)}
        and right == left[::-1]
        and "yes-no" in asked(a) & asked(b)
    )


def _task(text: Statement) -> str | None:
    """Return what the text tells the reader to do, if that comes first."""
    for word in text.words[:_LEAD_LENGTH]:
        if word not in _LEAD:
            return _TASKS.get(word)
    return None


def _textual(text: Statement) -> bool:
    return _task(text) in _TEXTUAL


def _other_task(a: Statement, b: Statement) -> bool:
    left, right = _task(a), _task(b)
    return (
        left is not None
        and right is not None
        and left != right
        and (
            _TEXTUAL.issuperset({left, right})
            or (left in _TEXTUAL and a.payload != "")
            or (right in _TEXTUAL and b.payload != "")
        )
        and not (left == "rewrite" and _says(right, a))
        and not (right == "rewrite" and _says(left, b))
    )


def _says(task: str, text: Statement) -> bool:
    """Tell whether a text to be rewritten is to be made what the task would make it."""
    return task in _MADE and _MADE[task].search(text.joined) is not None


def _otherwise_counted(a: Statement, b: Statement, apart: Difference) -> bool:
    """Tell whether one text counts minutes and the other seconds."""
    left, right = _counted(a), _counted(b)
    if left is None or right is None or left == right or apart.closeness < _CLOSE:
        return False
    if left in _TIME and right in _TIME:
        return True
    return any(x.text == left and _is_counted(x) for x in apart.left) and any(
        x.text == right and _is_counted(x) for x in apart.right
    )


def _is_counted(item: Item) -> bool:
    return item.word.ordinary and not item.word.harmless and item.text not in ADDABLE


_SKIPPED: Final = words("different more other possible total of the whole extra")
_TIME: Final = words("seconds minutes hours days weeks months years miles kilometers kilometres")


def _counted(text: Statement) -> str | None:
    """Return the word behind "how many"."""
    _, found, rest = text.joined.partition(" how many ")
    return next((x for x in rest.split(" ", 3)[:3] if x not in _SKIPPED), None) if found else None
