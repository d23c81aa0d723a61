"""Whether the answer depends on when a question is asked, or another answer is wanted each time.

Law: only the text decides; no clock is read. A day named by its date does not depend on now.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.semantic.eligibility import words as lists
from gateway.semantic.eligibility.tokens import TokenizedQuestion, sentences_of, tokenize_question

_SHORT = 5
_REQUEST = 10
_STORY_WORDS = 15
_STORY_FIGURES = 2
_YEAR_DIGITS = 4
_TITLE = 6
"""Words after "who" in which an office may be named."""


def varies(asked: TokenizedQuestion) -> bool:
    """Tell whether the request wants another answer than the last one, or one by chance.

    It must ask for something: how to make a random number is a question like any other.
    """
    if asked.vocabulary.isdisjoint(lists.ASKS_VARIETY):
        return False
    words = asked.words
    verb = next((word for word in words if word not in lists.POLITE), "")
    if verb in lists.ASKING:
        return False
    return (
        (verb in lists.VARYING_OPENINGS and len(words) <= _SHORT and "for" not in words)
        or (words[-1] == "again" and len(words) <= _SHORT)
        or (len(words) <= _REQUEST and not asked.pairs.isdisjoint(lists.BY_CHANCE))
        or (verb in lists.GIVING and not asked.pairs.isdisjoint(lists.VARIED))
    )


def depends_on_time(question: TokenizedQuestion) -> bool:
    """Tell whether the answer depends on when the question is asked.

    Days do not count in a story with its own figures (Tom has 8 apples left today), nor in a
    statement that only leads to the question.
    """
    if question.vocabulary.isdisjoint(lists.ASKS_TIME) or _tells_story(question):
        return False
    asked = _asking_part(question)
    return (
        not asked.vocabulary.isdisjoint(lists.MOMENTS)
        or not asked.pairs.isdisjoint(lists.OF_ITS_TIME)
        or _asks_the_market(asked)
        or _asks_the_clock(asked)
        or _names_period(asked)
        or _asks_how_things_stand(asked)
    )


def _asking_part(question: TokenizedQuestion) -> TokenizedQuestion:
    """Return the sentences that ask, without those that only lead to the question."""
    sentences = sentences_of(question.text.strip(), clauses=True)
    if len(sentences) == 1:
        return question
    asking = [sentence for sentence in sentences if sentence.rstrip().endswith("?")]
    asked = tokenize_question(" ".join(asking))
    # A lone "?" is a sentence without a word: "What is 1.5! ?"
    return asked if asked.words else question


def _tells_story(question: TokenizedQuestion) -> bool:
    words = question.words
    if len(words) < _STORY_WORDS:
        return False
    figures = sum(word.isdigit() or word in lists.NUMBERS for word in words)
    return figures >= _STORY_FIGURES and (
        words[0] in ("if", "suppose", "assume")
        or any(end in question.text for end in (". ", "? ", "! ", "; ", ": "))
    )


def _asks_the_market(asked: TokenizedQuestion) -> bool:
    """Find "exchange rate of the euro", and not "which exchange rate did I pay"."""
    of_market = not asked.pairs.isdisjoint(lists.OF_THE_MARKET)
    return of_market and asked.vocabulary.isdisjoint(lists.OWN)


def _asks_the_clock(asked: TokenizedQuestion) -> bool:
    """Find "what's the date", and not the date of a battle."""
    return asked.words[-1] in ("time", "date", "day") and not asked.pairs.isdisjoint(lists.CLOCK)


def _names_period(asked: TokenizedQuestion) -> bool:
    """Find "this month", "last week", "the past 3 days"."""
    words = asked.words
    if asked.vocabulary.isdisjoint(lists.RELATIVE) or asked.vocabulary.isdisjoint(lists.PERIODS):
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
    """A word's place in the question."""

    before: str
    rest: Sequence[str]
    own: bool
    """Whether "I" or "my" is in the question."""
    asked: TokenizedQuestion

    @property
    def following(self) -> str:
        return self.rest[0] if self.rest else ""


def _asks_how_things_stand(asked: TokenizedQuestion) -> bool:
    own = not asked.vocabulary.isdisjoint(lists.OWN)
    words = asked.words
    return any(
        _STANDING[word](_Place(words[at - 1] if at else "", words[at + 1 : at + 7], own, asked))
        for at, word in enumerate(words)
        if word in _STANDING
    )


def _now(place: _Place) -> bool:
    """Beside "I" or "my", "now" is a turn of speech; "right now" never is."""
    if place.before == "right":
        return True
    return not (place.own or place.before in lists.BEFORE_NOW or place.following == "that")


def _currently(place: _Place) -> bool:
    """Beside "I" or "my", "currently" describes the user, and changes no answer."""
    return not place.own


def _current(place: _Place) -> bool:
    return place.following in lists.CURRENT and place.before not in lists.OWN


def _recent(place: _Place) -> bool:
    if place.following in lists.RECENT:
        return True
    most = place.before == "most" and not place.own
    return most and place.following not in lists.HELD | lists.ENGLISH


def _newest(place: _Place) -> bool:
    return place.before != "at" and place.following not in lists.HELD


def _next(place: _Place) -> bool:
    """Find "when is the next election"."""
    return place.asked.words[0] == "when" and not place.own


def _until(place: _Place) -> bool:
    return place.before in ("days", "weeks", "months", "hours", "long") and not place.own


def _weather(place: _Place) -> bool:
    if place.before in lists.SPELLS or _is_dated(place):
        return False
    return place.asked.vocabulary.isdisjoint(lists.ABOUT_WEATHER)


def _news(place: _Place) -> bool:
    return place.asked.vocabulary.isdisjoint(lists.ABOUT_NEWS) and not _is_dated(place)


def _who(place: _Place) -> bool:
    """Find who holds an office as of now."""
    if not place.rest or place.rest[0] not in ("is", "s", "are", "the", "leads", "runs"):
        return False
    return not lists.OFFICES.isdisjoint(place.rest[:_TITLE]) and not place.own


def _is_dated(place: _Place) -> bool:
    return any(word.isdigit() and len(word) == _YEAR_DIGITS for word in place.asked.vocabulary)


_STANDING: dict[str, Callable[[_Place], bool]] = {
    "now": _now,
    "currently": _currently,
    "current": _current,
    "recent": _recent,
    "latest": _newest,
    "newest": _newest,
    "next": _next,
    "until": _until,
    "till": _until,
    "weather": _weather,
    "forecast": _weather,
    "news": _news,
    "headlines": _news,
    "who": _who,
}
