"""Edits that keep the question: how people write, not what they ask. No fit, no edit."""

import re
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Final

from tools.verifier.templates.inflection import ONES, listed, number_words
from tools.verifier.templates.lexicon import words

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"

_OPENINGS: Final = (
    "Hi, ",
    "Hello, ",
    "Hey, ",
    "Hi there! ",
    "Good morning. ",
    "Quick question: ",
    "Question: ",
    "Just wondering, ",
    "I was wondering: ",
    "Sorry to bother you. ",
    "I need some help. ",
    "Help please: ",
    "Please help me out. ",
    "Out of curiosity, ",
    "So, ",
    "Ok so ",
    "Hope you're doing well. ",
    "One more thing: ",
    "I have a question. ",
    "This might be a silly question, but ",
    "Good evening, ",
    "Excuse me, ",
    "Pardon me, ",
    "Hello everyone, ",
    "Dear team, ",
    "Hi folks, ",
    "Hiya, ",
    "Thanks for your help so far. ",
    "Sorry if this is obvious. ",
    "Sorry to ask again: ",
    "Be honest: ",
    "Tell me, ",
    "By the way, ",
    "Anyway, ",
    "Right, ",
    "OK, so ",
    "Well, ",
    "Hmm, ",
    "Short question: ",
    "Another question: ",
    "Need your advice. ",
    "I'm curious: ",
    "Honest question: ",
    "Long story short: ",
)
_CLOSINGS: Final = (
    " Thanks!",
    " Thank you.",
    " Thanks in advance.",
    " Please help.",
    " Any ideas?",
    " Thx",
    " Cheers",
    " Please answer.",
    " I'd like to know.",
    " Just curious.",
    " Many thanks!",
    " Thank you so much.",
    " Much appreciated.",
    " Appreciate your help.",
    " I'd be glad to hear from you.",
    " Best regards",
    " Have a nice day!",
    " Sorry for the bother.",
    " I can't find it anywhere.",
    " That's all for now.",
    " I keep wondering.",
    " Hope you can help.",
    " Ty",
)
_ASKING: Final = (
    "Can you tell me ",
    "Could you tell me ",
    "Please tell me ",
    "I'd like to know ",
    "I want to know ",
    "Do you know ",
    "Could you explain ",
    "Does anyone know ",
    "I wonder ",
    "I need to know ",
    "Can you explain to me ",
    "Could you please tell me ",
    "Do you happen to know ",
    "I was wondering ",
    "I'd love to know ",
    "I'm trying to find out ",
    "I'm curious ",
)

_CONTRACTIONS: Final[Mapping[str, str]] = {
    "what is": "what's",
    "who is": "who's",
    "where is": "where's",
    "how is": "how's",
    "when is": "when's",
    "that is": "that's",
    "it is": "it's",
    "there is": "there's",
    "do not": "don't",
    "does not": "doesn't",
    "did not": "didn't",
    "is not": "isn't",
    "are not": "aren't",
    "was not": "wasn't",
    "were not": "weren't",
    "cannot": "can't",
    "could not": "couldn't",
    "should not": "shouldn't",
    "would not": "wouldn't",
    "will not": "won't",
    "has not": "hasn't",
    "have not": "haven't",
    "i am": "I'm",
    "you are": "you're",
    "they are": "they're",
    "i have": "I've",
    "i will": "I'll",
    "i would": "I'd",
    "let us": "let's",
}
_EXPANSIONS: Final = {short.casefold(): long for long, short in _CONTRACTIONS.items()}

_CHATTY: Final[Mapping[str, str]] = {
    "you": "u",
    "your": "ur",
    "are": "r",
    "please": "pls",
    "thanks": "thx",
    "because": "cuz",
    "and": "&",
    "with": "w/",
    "going to": "gonna",
    "want to": "wanna",
    "someone": "smn",
    "people": "ppl",
    "about": "abt",
    "i don't know": "idk",
}

_FILLERS: Final = ("really", "actually", "currently", "exactly", "just", "generally", "typically")
_SHIELDED: Final = frozenset(
    listed("without before after never neither either nothing nobody except unless until cannot")
    + tuple(number_words(number) for number in range(91))
)


def _replaced(text: str, start: int, end: int, new: str) -> str:
    old = text[start:end]
    if old[:1].isupper() and new[:1].islower():
        new = new[:1].upper() + new[1:]
    return text[:start] + new + text[end:]


@cache
def any_of(phrases: tuple[str, ...]) -> re.Pattern[str]:
    """Find any of the phrases as whole words, in small or capital letters; the longest first."""
    ordered = sorted(phrases, key=len, reverse=True)
    either = "|".join(re.escape(phrase) for phrase in ordered)
    return re.compile(rf"(?<![\w'-])(?:{either})(?![\w'-])", re.IGNORECASE)


def _substitute(text: str, table: Mapping[str, str], rng: Random) -> str:
    """Replace one occurrence of one of the table's phrases; the table is written small."""
    found = list(any_of(tuple(table)).finditer(text)) if table else []
    if not found:
        return text
    match = rng.choice(found)
    new = table.get(match[0]) or table.get(match[0].lower(), match[0])
    return _replaced(text, match.start(), match.end(), new)


def lower_case(text: str, rng: Random) -> str:
    """Write everything small, or seldom everything in capitals, or each first letter."""
    draw = rng.random()
    if draw < 0.8:
        return text.lower()
    return text.upper() if draw < 0.9 else text[:1].swapcase() + text[1:]


def loose_end(text: str, rng: Random) -> str:
    """Drop or double the last mark."""
    bare = text.rstrip("?.! ")
    return bare + rng.choice(("", "", "", "?", "??", "...", " ?"))


def _lowered(text: str) -> str:
    """Write the first letter small, unless a name or I begins the text."""
    first = re.split(r"[ ',]", text, maxsplit=1)[0]
    common = first.lower() in _COMMON_STARTS
    return text[:1].lower() + text[1:] if common else text


_COMMON_STARTS: Final = frozenset(
    listed(
        "what who whom whose which where when why how is are was were do does did can could should"
        " would will may must has have had if the a an my your his her our their this that there"
        " give tell show find list name explain describe please could to in on at for with after"
    )
)


def polite(text: str, rng: Random) -> str:
    """Greet, or thank."""
    if text.startswith(_OPENINGS) or text.endswith(_CLOSINGS):
        return text
    if rng.random() < 0.65:
        return rng.choice(_OPENINGS) + _lowered(text)
    end = "" if text.endswith(("?", ".", "!")) else "."
    return text + end + rng.choice(_CLOSINGS)


_HOW: Final = re.compile(r"^how (?:do|can|could|should) (?:i|you|we|one) (.+?)\??$", re.IGNORECASE)
_WHAT: Final = re.compile(
    r"^(what|who|where) (is|are|was|were) (the [a-z]+ of [\w' -]{3,40}|the [a-z]+(?: [a-z]+)?)\?$",
    re.IGNORECASE,
)
_NO_NOUN_PHRASE: Final = re.compile(
    r" (?:that|which|who|if|and|or|between|than|to|by|used|like|called|known|in|on)\b"
    r"|(?:ing|ed|ly|en)\b"
)


def indirect(text: str, rng: Random) -> str:
    """Ask for being told: "What is X?" becomes "Can you tell me what X is?"."""
    opening = rng.choice(_ASKING)
    mark = "?" if opening.startswith(("C", "D")) else "."
    how = _HOW.match(text)
    if how and "?" not in how[1] and "." not in how[1]:
        return f"{opening}how to {how[1]}{mark}"
    what = _WHAT.match(text)
    if what and not _NO_NOUN_PHRASE.search(what[3]):
        return f"{opening}{what[1].lower()} {what[3].strip()} {what[2]}{mark}"
    return text


_WHETHER: Final = re.compile(
    r"^(can|should|may|must|could|would|will|do) (i|you|we|they) ([^.?!]+)\?$", re.IGNORECASE
)
_WHY: Final = re.compile(r"^(why|when|where) do ((?!i\b|you\b)[^.?!]+)\?$", re.IGNORECASE)


def whether(text: str, rng: Random) -> str:
    """Ask for being told: "Can I swim?" becomes "I wonder whether I can swim."."""
    opening = rng.choice(_ASKING)
    mark = "?" if opening.startswith(("C", "D")) else "."
    found = _WHETHER.match(text)
    if found:
        auxiliary, subject, rest = found.groups()
        subject = "I" if subject.lower() == "i" else subject.lower()
        verb = "" if auxiliary.lower() == "do" else f"{auxiliary.lower()} "
        return f"{opening}{rng.choice(('if', 'whether'))} {subject} {verb}{rest}{mark}"
    found = _WHY.match(text)
    return f"{opening}{found[1].lower()} {found[2]}{mark}" if found else text


_REQUESTS: Final = (
    "Please {}",
    "Can you {}?",
    "Could you {}?",
    "Could you please {}?",
    "Would you mind? {}",
    "I need you to {}",
    "I'd like you to {}",
    "I want you to {}",
    "Can you {} for me?",
    "{} please",
    "{} now please",
    "Hey, {}",
    "Go ahead and {}",
    "Would you {}?",
)


def requested(text: str, rng: Random) -> str:
    """Make a command a request: "Set an alarm" becomes "Could you set an alarm?"."""
    commands = {word.forms[0] for word in words("imperatives")}
    if text.split(" ", 1)[0].lower() not in commands or re.search(r"[.?!:] ", text):
        return text
    return rng.choice(_REQUESTS).format(text[:1].lower() + text[1:].rstrip(".?!"))


def with_background(text: str, rng: Random) -> str:
    """Tell first what has nothing to do with the question."""
    told = rng.choice(words("backgrounds")).forms[0]
    return text if len(text.split()) > 30 else f"{told} {text}"


def contracted(text: str, rng: Random) -> str:
    """Contract, or write a contraction out."""
    table = _CONTRACTIONS if rng.random() < 0.6 else _EXPANSIONS
    changed = _substitute(text, table, rng)
    return changed if rng.random() < 0.7 else changed.replace("'", "")


def typo(text: str, rng: Random) -> str:
    """Misspell a long small word inside: it stays easy to recognise."""
    found = [
        match
        for match in re.finditer(r"(?<![\w'-])[a-z]{6,}(?![\w'-])", text)
        if match[0] not in _SHIELDED
    ]
    if not found:
        return text
    match = rng.choice(found)
    word = match[0]
    at = rng.randrange(2, len(word) - 2)
    draw = rng.randrange(4)
    if draw == 0:
        word = word[:at] + word[at + 1 :]
    elif draw == 1:
        word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif draw == 2:
        word = word[:at] + word[at] + word[at:]
    else:
        word = word[:at] + rng.choice(_LETTERS) + word[at + 1 :]
    return text[: match.start()] + word + text[match.end() :]


# "A few" is not few, and "an hour" may be per hour.
_ARTICLE: Final = re.compile(
    r"(?<=\w )(?:the|an|a) (?=[a-z])(?!few|little|lot|second|minute|hour|day|week|month|year|dozen)"
)


def without_articles(text: str, rng: Random) -> str:
    """Drop "the" and "a", as in a search box."""
    del rng
    bare = _ARTICLE.sub("", text)
    return re.sub(r"^(?:The|An|A) (?=[a-z])(?!few|little|lot)", "", bare)


_NUMBER_WORDS: Final = {word: str(number) for number, word in enumerate(ONES) if number > 1}
_DIGITS: Final = {number: word for word, number in _NUMBER_WORDS.items()}


def numbers_rewritten(text: str, rng: Random) -> str:
    """Write a number as a word or in digits, or group its thousands."""
    if rng.random() < 0.3:
        return re.sub(r"(?<![\d.,:$€£])(\d{1,2})(\d{3})(?![\d.,:])(?= [a-z])", _grouped, text)
    return _substitute(text, {**_NUMBER_WORDS, **_only_whole(text)}, rng)


def _grouped(found: re.Match[str]) -> str:
    year = 1500 < int(found[0]) < 2100
    return found[0] if year else f"{found[1]},{found[2]}"


def _only_whole(text: str) -> Mapping[str, str]:
    whole = set(re.findall(r"(?<![\w.,:/$€£#-])\d{1,2}(?= [a-z]{3,})", text))
    outside = set(re.findall(r"(?:[.,:/$€£#-]|v|version )(\d{1,2})\b", text))
    return {number: word for number, word in _DIGITS.items() if number in whole - outside}


@cache
def _both_ways(kind: str) -> Mapping[str, str]:
    table = {}
    for word in words(kind):
        for at, form in enumerate(word.forms):
            table[form] = word.forms[(at + 1) % len(word.forms)]
    return table


def respelled(text: str, rng: Random) -> str:
    """Write the American way for the British, or the other way round."""
    return _substitute(text, _both_ways("spelling"), rng)


def synonym(text: str, rng: Random) -> str:
    """Exchange a word or a turn of phrase for one that means the same nearly everywhere."""
    one_way = {word.forms[0]: word.forms[1] for word in words("one_way")}
    return _substitute(text, {**one_way, **_both_ways("interchangeable")}, rng)


def with_filler(text: str, rng: Random) -> str:
    """Put in a word that adds nothing."""
    filler = rng.choice(_FILLERS)
    if filler in text:
        return text
    spots = list(
        re.finditer(
            r"^(?:what|who|where|when|why|how) (?:is|are|do|does|did|can) ", text, re.IGNORECASE
        )
    )
    after_subject = list(
        re.finditer(
            r"^(?:how|why|where|when|what) (?:do|does|can|did) (?:i|you|we|they|people) ",
            text,
            re.IGNORECASE,
        )
    )
    if after_subject:
        end = after_subject[0].end()
        return f"{text[:end]}{filler} {text[end:]}"
    if spots and filler in {"really", "actually", "currently", "exactly"}:
        end = spots[0].end()
        return f"{text[:end]}{filler} {text[end:]}"
    if text.endswith("?") and filler in {"really", "actually", "exactly"}:
        return text[:-1].rstrip() + ("" if filler == "really" else f" {filler}") + "?"
    return text


def chatty(text: str, rng: Random) -> str:
    """Write a word as in a chat."""
    return _substitute(text, _CHATTY, rng)


def no_marks(text: str, rng: Random) -> str:
    """Leave out commas and apostrophes."""
    del rng
    return re.sub(r"(?<=[a-z]),(?= )|(?<=[a-z])'(?=[a-z])", "", text)
