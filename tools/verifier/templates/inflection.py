"""English forms made by rule: plurals, verb forms, comparatives, articles, number words."""

import re
from typing import Final

VOWELS: Final = "aeiou"
_DOUBLING: Final = re.compile(r"[^aeiou][aeiou][bdgklmnprtvz]$")
_UNDOUBLED: Final = re.compile(r"(?:[eo]n|er|it|or|el|op|et|om|il|in|al)$")
_ARTICLE: Final = re.compile(r"(?:(?<=^)|(?<=[.?!:] )|(?=a))\b([Aa])n? (?=[\"']?([\w-]+))")
_LIKE_CONSONANT: Final = re.compile(
    r"uni(?!n|m)|us[aeiu]|eu|one\b|once|ur[aeiou]|ubiq|ut[aei]|uk\b"
)
_LIKE_VOWEL: Final = re.compile(r"hour|honest|honou?r|heir|(?:8\d*|11|18)(?!\d)|8")
_SPELLED_LIKE_VOWEL: Final = re.compile(r"[AEFHILMNORSX][A-Z]+s?\b")
_SPELLED_LIKE_CONSONANT: Final = re.compile(r"[BCDGJKPQTUVWYZ][A-Z]+s?\b")

_PLURALS: Final = {
    "child": "children",
    "person": "people",
    "man": "men",
    "woman": "women",
    "foot": "feet",
    "tooth": "teeth",
    "mouse": "mice",
    "goose": "geese",
    "ox": "oxen",
    "knife": "knives",
    "wife": "wives",
    "wolf": "wolves",
    "shelf": "shelves",
    "leaf": "leaves",
    "loaf": "loaves",
    "calf": "calves",
    "scarf": "scarves",
    "half": "halves",
    "life": "lives",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "hero": "heroes",
    "mosquito": "mosquitoes",
    "mango": "mangoes",
    "sheep": "sheep",
    "deer": "deer",
    "salmon": "salmon",
    "trout": "trout",
    "squid": "squid",
    "bison": "bison",
    "moose": "moose",
    "aircraft": "aircraft",
    "series": "series",
    "passer-by": "passers-by",
}


def listed(text: str) -> tuple[str, ...]:
    """Return the words of a line."""
    return tuple(text.split())


ONES: Final = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
TENS: Final = listed("_ _ twenty thirty forty fifty sixty seventy eighty ninety")


def plural(noun: str) -> str:
    """Return the plural of a noun, or of a phrase by its last word."""
    head, space, last = noun.rpartition(" ")
    if last in _PLURALS:
        made = _PLURALS[last]
    elif last.endswith("man") and last not in {"human", "German", "Roman", "shaman"}:
        made = last[:-3] + "men"
    elif last.endswith("fish"):
        made = last
    elif re.search(r"(?:s|x|z|ch|sh)$", last):
        made = last + "es"
    elif re.search(r"[^aeiou]y$", last):
        made = last[:-1] + "ies"
    else:
        made = last + "s"
    return head + space + made


def _verb(phrase: str) -> tuple[str, str]:
    """Split "pick up" into the part that is inflected and the rest."""
    verb, space, rest = phrase.partition(" ")
    return verb, space + rest


def third_person(phrase: str) -> str:
    """Return "calls back" for "call back"."""
    verb, rest = _verb(phrase)
    irregular = {"have": "has", "do": "does", "go": "goes", "be": "is"}
    if verb in irregular:
        return irregular[verb] + rest
    if re.search(r"(?:s|x|z|ch|sh|o)$", verb):
        return verb + "es" + rest
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ies" + rest
    return verb + "s" + rest


def _doubles(verb: str) -> bool:
    return bool(_DOUBLING.search(verb)) and (len(verb) <= 4 or not _UNDOUBLED.search(verb))


def past(phrase: str) -> str:
    """Return the regular past: "called back" for "call back"."""
    verb, rest = _verb(phrase)
    if verb.endswith("e"):
        return verb + "d" + rest
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ied" + rest
    if _doubles(verb):
        return verb + verb[-1] + "ed" + rest
    return verb + "ed" + rest


def ing(phrase: str) -> str:
    """Return the participle: "calling back" for "call back"."""
    verb, rest = _verb(phrase)
    if verb.endswith("ie"):
        return verb[:-2] + "ying" + rest
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")) and verb != "be":
        return verb[:-1] + "ing" + rest
    if _doubles(verb):
        return verb + verb[-1] + "ing" + rest
    return verb + "ing" + rest


def comparative(adjective: str) -> str:
    """Return "bigger", "happier" or "more careful"."""
    irregular = {
        "good": "better",
        "bad": "worse",
        "far": "further",
        "dry": "drier",
        "naive": "more naive",
        "fun": "more fun",
    }
    if adjective in irregular:
        return irregular[adjective]
    syllables = len(re.findall(r"[aeiouy]+", adjective.removesuffix("e")))
    if syllables == 1 and adjective.isalpha():
        if adjective.endswith("e"):
            return adjective + "r"
        if re.search(r"[^aeiou][aeiou][bdgmnpt]$", adjective):
            return adjective + adjective[-1] + "er"
        return adjective + "er"
    if syllables == 2 and re.search(r"[^aeiou]y$", adjective):
        return adjective[:-1] + "ier"
    return "more " + adjective


def superlative(adjective: str) -> str:
    """Return "biggest", "happiest" or "most careful"."""
    made = comparative(adjective)
    irregular = {"better": "best", "worse": "worst", "further": "furthest"}
    if made in irregular:
        return irregular[made]
    return "most " + adjective if made.startswith("more ") else made[:-1] + "st"


def number_words(number: int) -> str:
    """Return "forty-two" for 42; up to 999,999."""
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f"-{ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{ONES[hundreds]} hundred" + (f" and {number_words(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    joint = " and " if 0 < rest < 100 else " "
    return f"{number_words(thousands)} thousand" + (joint + number_words(rest) if rest else "")


def ordinal(number: int) -> str:
    """Return "3rd" for 3."""
    if number % 100 in {11, 12, 13}:
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def with_right_articles(text: str) -> str:
    """Choose "a" or "an" by the sound of the next word."""

    def choose(found: re.Match[str]) -> str:
        article, word = found.groups()
        lower = word.lower()
        if _SPELLED_LIKE_VOWEL.match(word):
            vowel = True
        elif _SPELLED_LIKE_CONSONANT.match(word) or _LIKE_CONSONANT.match(lower):
            vowel = False
        else:
            vowel = lower[0] in VOWELS or bool(_LIKE_VOWEL.match(lower))
        return f"{article}{'n' if vowel else ''} "

    return _ARTICLE.sub(choose, text)
