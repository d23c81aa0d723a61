"""Which questions may be looked up by meaning; all others have exact hits only.

Laws: each text gets a verdict, in bounded time, as its length is checked first. Lookup and storing
both ask here, so what may not be looked up is never findable. In doubt a question has exact hits
only: that costs a hit, and never gives a wrong answer.

Only the text decides what depends on time; no clock is read. A day named by its date does not
depend on now.

A few words without a function word count as English, unless something marks another language. A
turn depends on earlier ones if its words stand for others. The fingerprint makes sure that the
earlier turns are equal, but no verifier can compare such words.
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.endpoints.spec import Question
from gateway.protocol.http.cache_status import Reason
from gateway.semantic import words as lists
from gateway.semantic.code import holds_code
from policies.decision import Endpoint

_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(
    r"(?<![A-Z]\.)(?<!\b[A-Z][a-z]\.)(?<!\b[A-Z][a-z]{2}\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bNo\.)"
    r"(?<!\bvs\.)(?<=[.!?])[\"'\u201d\u2019)\]]*\s+(?=\S)"
    r"|(?<=[\u3002\uff01\uff1f])|\n+"
)
"""Not behind what may be an abbreviation."""
_CLAUSE = re.compile(r"(?<=[.!?;])\s+|\n+")
_UNSTRESSED = frozenset({"s", "is", "are", "the", "a", "an", "re"})
"""Left out of pairs: "what's the time" and "what time is it" are alike then."""
_RUN_TOGETHER = {f"{word}s": word for word in ("what", "where", "who", "how", "when", "why")}
_ACCENTED = (
    "aàáâãäåāăą cçćčĉċ dďđð eèéêëēĕėęě gĝğġģ iìíîïĩīĭį lĺļľł nñńņň oòóôõöøōŏő"
    " rŕŗř sśŝşš tţťŧþ uùúûüũūŭůűų yýÿŷ zźżž"
)
"""Each letter with its accented forms."""
_PLAIN = str.maketrans(
    {accented: forms[0] for forms in _ACCENTED.split() for accented in forms[1:]}
    | {"ß": "ss", "æ": "ae", "œ": "oe"}
)


class TokenizedQuestion(NamedTuple):
    """Words in lower case, without accents, cut at apostrophes: "what's" is two words.

    ``pairs`` are neighbours, articles and "is" left out.
    """

    text: str
    words: list[str]
    vocabulary: frozenset[str]
    pairs: frozenset[tuple[str, str]]


def tokenize_question(text: str) -> TokenizedQuestion:
    """Cut a text into words."""
    lower = text.lower()
    if not lower.isascii():
        lower = lower.translate(_PLAIN)
    words = [_RUN_TOGETHER.get(word, word) for word in _WORD.findall(lower)]
    pairs = frozenset(pairwise(word for word in words if word not in _UNSTRESSED))
    return TokenizedQuestion(text, words, frozenset(words), pairs)


def sentences_of(text: str, *, clauses: bool = False) -> list[str]:
    """Cut a text between sentences and lines; joined again, they are the text.

    ``clauses`` also cuts behind semicolons and abbreviations, so that no sentence is overlooked.
    """
    ends = (found.end() for found in (_CLAUSE if clauses else _SENTENCE).finditer(text))
    cuts = pairwise((0, *ends, len(text)))
    return [text[start:end] for start, end in cuts if start < end]


MAX_WITHOUT_FUNCTION_WORDS = 9
"""Of a text in English; twice as many with one function word, and so on."""
OTHER_LETTERS = 0.1
"""Share of letters that are not Latin, above which a text is in another script."""

_LOWER_ACCENTED = re.compile(r"\b[a-z]*[\u00df-\u00f6\u00f8-\u00ff][a-z]*\b")
_LATIN_ENDS = "\u024f"


def is_foreign(text: TokenizedQuestion) -> bool:
    """Tell by its function words whether a text in Latin letters is not English."""
    vocabulary = text.vocabulary
    english = len(vocabulary & lists.ENGLISH)
    foreign = len(vocabulary & lists.FOREIGN)
    perhaps = len(vocabulary & lists.PERHAPS_FOREIGN)
    if foreign and (foreign + perhaps) * 2 > english:
        return True
    if len(text.words) > MAX_WITHOUT_FUNCTION_WORDS * (english + 1):
        return True
    if english:
        return perhaps > english + 1
    return perhaps > 1 or (
        not text.text.isascii() and _LOWER_ACCENTED.search(text.text) is not None
    )


def is_prose(text: str) -> bool:
    """Tell whether a text holds English sentences: rows of data have no function words."""
    return is_english(text) and not tokenize_question(text).vocabulary.isdisjoint(lists.ENGLISH)


def is_english(text: str) -> bool:
    """Tell whether an English encoder makes sense of a text."""
    if not text.isascii():
        letters = [character for character in text if character.isalpha()]
        if sum(letter > _LATIN_ENDS for letter in letters) > OTHER_LETTERS * len(letters):
            return False
    return not is_foreign(tokenize_question(text))


_FRAGMENT = 2
"""Words in "the second" or "in Canada"."""
_SHORT = 5
_LONG = 10
"""In more words a sentence says itself what "the other one" is."""
_CLOSE = 3
_ENOUGH_BEFORE = 4
"""Words of content before a pronoun, which then stands for one of them."""


def is_vague(turn: TokenizedQuestion) -> bool:
    """Tell whether a text says too little by itself."""
    return len(turn.words) <= _FRAGMENT and turn.vocabulary <= lists.VAGUE


def depends_on_earlier_turns(turn: TokenizedQuestion) -> bool:
    """Tell whether a turn may be understood only by the turns before it."""
    words, vocabulary, pairs = turn.words, turn.vocabulary, turn.pairs
    return (
        len(words) <= _FRAGMENT
        or words[0] in lists.LEANING_OPENINGS
        or (len(words) <= _SHORT and words[0] in lists.PREPOSITIONS)
        or (len(words) <= _SHORT and vocabulary.isdisjoint(lists.ASKING))
        or not vocabulary.isdisjoint(lists.LEANING_ANYWHERE)
        or (len(words) <= _LONG and words[-1] in lists.LEANING_ENDS)
        or (len(words) <= _LONG and not pairs.isdisjoint(lists.LEANING_PAIRS))
        or _refers_back(words, vocabulary)
    )


def _refers_back(words: Sequence[str], vocabulary: frozenset[str]) -> bool:
    """Tell whether a pronoun stands for nothing in the text before it."""
    if vocabulary.isdisjoint(lists.PRONOUNS):
        return False
    content = 0
    before = ""
    for at, word in enumerate(words):
        if word not in lists.PRONOUNS:
            new = word not in lists.ENGLISH
            content += _ENOUGH_BEFORE if new and before in lists.INTRODUCING else new
        elif not _stands_for_nothing(word, before, words[at + 1 :]):
            return content < _ENOUGH_BEFORE
        before = word
    return False


def _stands_for_nothing(word: str, before: str, rest: Sequence[str]) -> bool:
    match word:
        case "it":
            return not lists.AFTER_EMPTY_IT.isdisjoint(rest[:-1][:_CLOSE])
        case "there":
            return before in lists.BEING or not lists.BEING.isdisjoint(rest[:1])
        case "that":
            return before in lists.BEFORE_CLAUSE or bool(before and before not in lists.ENGLISH)
        case "this":
            return not lists.PERIODS.isdisjoint(rest[:1])
        case _:
            return False


_REQUEST = 10
_STORY_WORDS = 15
_STORY_FIGURES = 2
_YEAR_DIGITS = 4
_TITLE = 6
"""Words after "who" in which an office may be named."""


def _verb(words: Sequence[str]) -> str:
    return next((word for word in words if word not in lists.POLITE), "")


def varies(question: TokenizedQuestion) -> bool:
    """Tell whether the request wants another answer than the last one, or one by chance.

    It must ask for something: how to make a random number is a question like any other.
    """
    if question.vocabulary.isdisjoint(lists.ASKS_VARIETY):
        return False
    words = question.words
    verb = _verb(words)
    if verb in lists.ASKING:
        return False
    return (
        (verb in lists.VARYING_OPENINGS and len(words) <= _SHORT and "for" not in words)
        or (words[-1] == "again" and len(words) <= _SHORT)
        or (len(words) <= _REQUEST and not question.pairs.isdisjoint(lists.BY_CHANCE))
        or (verb in lists.GIVING and not question.pairs.isdisjoint(lists.VARIED))
    )


def depends_on_time(question: TokenizedQuestion) -> bool:
    """Tell whether the answer depends on the time of the question.

    Days do not count in a story with its own figures (Tom has 8 apples left today). They do not
    count in a statement that only leads to the question either.
    """
    if question.vocabulary.isdisjoint(lists.ASKS_TIME) or _tells_story(question):
        return False
    core = _asking_part(question)
    vocabulary, pairs = core.vocabulary, core.pairs
    return (
        not vocabulary.isdisjoint(lists.MOMENTS)
        or not pairs.isdisjoint(lists.OF_ITS_TIME)
        # "Exchange rate of the euro", and not "which exchange rate did I pay".
        or (not pairs.isdisjoint(lists.OF_THE_MARKET) and vocabulary.isdisjoint(lists.OWN))
        # "What's the date", and not the date of a battle.
        or (core.words[-1] in ("time", "date", "day") and not pairs.isdisjoint(lists.CLOCK))
        or _names_period(core)
        or _asks_current_state(core)
    )


def _asking_part(question: TokenizedQuestion) -> TokenizedQuestion:
    """Return the sentences that ask, without sentences that only lead to the question."""
    sentences = sentences_of(question.text.strip(), clauses=True)
    if len(sentences) == 1:
        return question
    asking = [sentence for sentence in sentences if sentence.rstrip().endswith("?")]
    part = tokenize_question(" ".join(asking))
    # A lone "?" is a sentence without a word: "What is 1.5! ?"
    return part if part.words else question


def _tells_story(question: TokenizedQuestion) -> bool:
    words = question.words
    if len(words) < _STORY_WORDS:
        return False
    figures = sum(word.isdigit() or word in lists.NUMBERS for word in words)
    return figures >= _STORY_FIGURES and (
        words[0] in ("if", "suppose", "assume")
        or any(end in question.text for end in (". ", "? ", "! ", "; ", ": "))
    )


def _names_period(question: TokenizedQuestion) -> bool:
    words, vocabulary = question.words, question.vocabulary
    if vocabulary.isdisjoint(lists.RELATIVE) or vocabulary.isdisjoint(lists.PERIODS):
        return False
    return any(
        word in lists.RELATIVE and _is_period(word, words[at + 1 : at + 3])
        for at, word in enumerate(words)
    )


def _is_period(relative: str, rest: Sequence[str]) -> bool:
    match rest:
        case [unit, *_] if unit in (lists.PERIODS if relative == "this" else lists.SPANS):
            return True
        case [count, unit]:
            counted = count.isdigit() or count in lists.NUMBERS
            return counted and unit in lists.PERIODS and relative in ("last", "past")
        case _:
            return False


class _Place(NamedTuple):
    before: str
    rest: Sequence[str]
    own: bool
    """Whether "I" or "my" is in the question."""
    question: TokenizedQuestion

    @property
    def following(self) -> str:
        return self.rest[0] if self.rest else ""


def _asks_current_state(question: TokenizedQuestion) -> bool:
    own = not question.vocabulary.isdisjoint(lists.OWN)
    words = question.words
    return any(
        _STATE_WORDS[word](
            _Place(words[at - 1] if at else "", words[at + 1 : at + 1 + _TITLE], own, question)
        )
        for at, word in enumerate(words)
        if word in _STATE_WORDS
    )


def _now(place: _Place) -> bool:
    """Beside "I" or "my", "now" is a turn of speech; "right now" never is."""
    if place.before == "right":
        return True
    return not (place.own or place.before in lists.BEFORE_NOW or place.following == "that")


def _recent(place: _Place) -> bool:
    if place.following in lists.RECENT:
        return True
    most = place.before == "most" and not place.own
    return most and place.following not in lists.HELD | lists.ENGLISH


def _newest(place: _Place) -> bool:
    return place.before != "at" and place.following not in lists.HELD


def _until(place: _Place) -> bool:
    return place.before in ("days", "weeks", "months", "hours", "long") and not place.own


def _weather(place: _Place) -> bool:
    return place.before not in lists.SPELLS and _is_of_today(place, lists.ABOUT_WEATHER)


def _news(place: _Place) -> bool:
    return _is_of_today(place, lists.ABOUT_NEWS)


def _is_of_today(place: _Place, other_topics: frozenset[str]) -> bool:
    """Tell whether no word names a year or makes it another topic."""
    words = place.question.vocabulary
    dated = any(word.isdigit() and len(word) == _YEAR_DIGITS for word in words)
    return not dated and words.isdisjoint(other_topics)


def _asks_office_holder(place: _Place) -> bool:
    """Find who holds an office as of now."""
    if place.own or place.following not in ("is", "s", "are", "the", "leads", "runs"):
        return False
    return not lists.OFFICES.isdisjoint(place.rest)


_STATE_WORDS: dict[str, Callable[[_Place], bool]] = {
    "now": _now,
    # Beside "I" or "my" it describes the user, and changes no answer.
    "currently": lambda place: not place.own,
    "current": lambda at: at.following in lists.CURRENT and at.before not in lists.OWN,
    "recent": _recent,
    "latest": _newest,
    "newest": _newest,
    # "When is the next election".
    "next": lambda place: place.question.words[0] == "when" and not place.own,
    "until": _until,
    "till": _until,
    "weather": _weather,
    "forecast": _weather,
    "news": _news,
    "headlines": _news,
    "who": _asks_office_holder,
}


MAX_CHARACTERS = 1000
MAX_WORDS = 160
"""About 200 tokens: encoder and verifier read the text whole."""
LONGEST_WORD = 40
MAX_GIVEN_WORDS = 12
"""Of a text to work on: the verifier can compare a shorter one."""
MAX_LINES = 6
MIN_STUFFED_WORDS = 12
MIN_DISTINCT = 0.45
"""Share of different words; English of this length has at least 0.6."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LATIN = re.compile("[\u00c0-\u0130\u0132-\u0137\u0139-\u0148\u014a-\u017e]")
"""Latin letters of names and loan words, without letters that imitate another one."""
_SIGNS = frozenset(
    "\u00a0£€¥¢§©®™°±²³¹¼½¾·÷\u00d7\u2018\u2019\u201c\u201d\u201e«»¡¿\u2013\u2014\u2212…•"
)
_ITEM = re.compile(r"(?:^|\s)\(?(?:[1-9]|[a-d]|i{1,3})[.)]\s+\w")
_MAX_ITEMS = 2
_ASIDE = 2
"""Spaces in a question that only stresses another: "What now??"."""
_MAX_ASIDES = 2
_ROLE = re.compile(
    r"^\s{0,9}(?:(?:system|assistant|user|human|ai)\s?:|#{2,6} \w)|<\||\[/?INST\]",
    re.IGNORECASE | re.MULTILINE,
)
_LINK = re.compile(r"https?://|www\.\w", re.IGNORECASE)
_GIVEN = re.compile(r"[:\n\"\u201c]")
_NEAR = 6
"""Words between "ignore" and its object."""


def semantic_query(endpoint: Endpoint, body: dict[str, Any]) -> Question | Reason:
    """Return the question of a request, or why it has exact hits only."""
    find = SPECS[endpoint].find_question
    found = Reason.ENDPOINT if find is None else find(body)
    if not isinstance(found, Question):
        return found
    return ineligible(found.text, follows=found.follows) or found


def ineligible(text: str, *, follows: bool = False) -> Reason | None:
    """Return why a text has exact hits only; ``follows``: there are earlier turns."""
    if len(text) > MAX_CHARACTERS:
        return Reason.TEXT_TOO_LONG
    if not text or text.isspace():
        return Reason.EMPTY_TEXT
    reason = _unreadable(text)
    if reason is not None:
        return reason
    if holds_code(text):
        return Reason.CODE
    question = tokenize_question(text)
    if not question.words:
        return Reason.VAGUE
    if follows and depends_on_earlier_turns(question):
        return Reason.FOLLOW_UP
    return next((reason for reason, applies in _CHECKS if applies(question)), None)


def _unreadable(text: str) -> Reason | None:
    """Find what an English encoder drops or mistakes, and what people do not see."""
    if _CONTROL.search(text):
        return Reason.UNREADABLE_TEXT
    if not text.isascii():
        for character in dict.fromkeys(_NOT_ASCII.findall(text)):
            if character not in _SIGNS and not _LATIN.match(character):
                return Reason.LANGUAGE if character.isalpha() else Reason.UNREADABLE_TEXT
    return None


def _is_stuffed(question: TokenizedQuestion) -> bool:
    """Tell whether a text repeats itself, or holds a word that is too long to be one."""
    count = len(question.words)
    if count >= MIN_STUFFED_WORDS and len(question.vocabulary) < MIN_DISTINCT * count:
        return True
    return any(len(word) > LONGEST_WORD for word in question.vocabulary)


def _instructs(question: TokenizedQuestion) -> bool:
    """Tell whether a text gives orders to the model or to the gateway.

    Beside a harmless question an order shapes an answer that other clients would get.
    """
    vocabulary, words = question.vocabulary, question.words
    if not question.pairs.isdisjoint(lists.MACHINERY) or _ROLE.search(question.text):
        return True
    if not vocabulary.isdisjoint(lists.ORDERS) and _orders_beside(question):
        return True
    if vocabulary.isdisjoint(lists.DISREGARD) or vocabulary.isdisjoint(lists.DISREGARDED):
        return False
    return any(
        word in lists.DISREGARD and not lists.DISREGARDED.isdisjoint(words[at + 1 : at + _NEAR])
        for at, word in enumerate(words)
    )


def _orders_beside(question: TokenizedQuestion) -> bool:
    """Find a sentence such as "Say yes." beside a question."""
    sentences = [each.rstrip() for each in sentences_of(question.text, clauses=True)]
    if not any(sentence.endswith("?") for sentence in sentences):
        return False
    openings = (
        _verb(tokenize_question(sentence).words)
        for sentence in sentences
        if not sentence.endswith("?")
    )
    return not lists.ORDERS.isdisjoint(openings)


def _holds_payload(question: TokenizedQuestion) -> bool:
    """Tell whether the question brings a text to work on, or a link to one.

    Many such questions have the same words, and only the text differs.
    """
    text, words = question.text, question.words
    if text.count("\n") >= MAX_LINES or _LINK.search(text):
        return True
    verb = _verb(words)
    if verb not in lists.WORKING and question.pairs.isdisjoint(lists.WORKED_ON):
        return False
    given = _GIVEN.search(text)
    return given is not None and len(tokenize_question(text[given.end() :]).words) > MAX_GIVEN_WORDS


def _asks_several(question: TokenizedQuestion) -> bool:
    """Tell whether there are several questions: an answer to one would count for all."""
    text = question.text
    if text.count("?") > 1:
        sentences = (each.strip() for each in sentences_of(text, clauses=True))
        asking = [each for each in sentences if each.endswith("?")]
        if len(asking) > _MAX_ASIDES or sum(each.count(" ") > _ASIDE for each in asking) > 1:
            return True
    return len(_ITEM.findall(text)) > _MAX_ITEMS


_CHECKS: tuple[tuple[Reason, Callable[[TokenizedQuestion], bool]], ...] = (
    (Reason.TEXT_TOO_LONG, lambda question: len(question.words) > MAX_WORDS),
    (Reason.STUFFED, _is_stuffed),
    (Reason.LANGUAGE, is_foreign),
    (Reason.INSTRUCTIONS, _instructs),
    (Reason.PAYLOAD, _holds_payload),
    (Reason.MANY_QUESTIONS, _asks_several),
    (Reason.VAGUE, is_vague),
    (Reason.VARIETY, varies),
    (Reason.TIME, depends_on_time),
)
"""In order: the first that applies is the reason."""
