"""General English word lists of the agreement check. Nothing here comes from evaluation data.

A word missing from a list of equals costs a hit; a word wrongly in one costs a wrong answer. So
groups of equals hold only words that can replace each other in almost every question.
"""

from collections.abc import Mapping
from itertools import permutations
from typing import Final


def _groups(*lines: str) -> Mapping[str, str]:
    """Map each word of a line to the line's first."""
    return {word: line.split()[0] for line in lines for word in line.split()}


def _pairs(*lines: str) -> frozenset[tuple[str, str]]:
    return frozenset(pair for line in lines for pair in permutations(line.split(), 2))


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# Carry no meaning of their own in a question.
DROPPED: Final = _words(
    "a an the to of that any some",
    "is are am",
    "please kindly really actually basically simply",
)

NEGATIONS: Final = _words(
    "not no never none nobody nothing nowhere neither nor without except unless",
    "hardly barely scarcely",
)

PERSONS: Final = _groups(
    "i me myself",
    "my mine",
    "we us ourselves",
    "our ours",
    "you yourself yourselves",
    "your yours",
    "he him himself",
    "she her hers herself",
    "it itself",
    "they them themselves",
    "their theirs",
    "his",
    "its",
    "one's",
    "someone somebody",
    "anyone anybody",
    "everyone everybody",
)

RELATIONS: Final = _words(
    "about above across after against along among around as at because before behind below beside",
    "between beyond by down during for from if in inside into near off on onto or out outside over",
    "per since than then through toward towards under until up upon versus via when while with",
    "within and but",
)

COMPARISONS: Final = _words(
    "more less fewer most least better worse best worst than rather enough too only even all every",
    "each both few many much several same different other another always sometimes often rarely",
    "usually still already again yet once twice half double triple dozen",
)

PAST: Final = _words("was were did had used-to")

UNITS: Final = _groups(
    "kilometre kilometer kilometres kilometers km",
    "metre meter metres meters",
    "centimetre centimeter centimetres centimeters cm",
    "millimetre millimeter millimetres millimeters mm",
    "mile miles",
    "inch inches",
    "foot feet ft",
    "yard yards",
    "kilogram kilogramme kilograms kilogrammes kg kgs",
    "gram gramme grams grammes",
    "pound pounds",
    "lb lbs",
    "ounce ounces oz",
    "litre liter litres liters",
    "gallon gallons",
    "second seconds sec secs",
    "minute minutes min mins",
    "hour hours hr hrs",
    "day days",
    "week weeks",
    "month months",
    "year years yr yrs",
    "kilobyte kilobytes kb",
    "megabyte megabytes mb",
    "gigabyte gigabytes gb",
    "terabyte terabytes tb",
    "celsius",
    "fahrenheit",
    "dollar dollars usd $",
    "euro euros eur \u20ac",
    "sterling gbp \u00a3",
    "cent cents",
    "percent percentage %",
)

# Spelling variants and words that can replace each other in almost every question.
EQUALS: Final = _groups(
    "delete remove",
    "buy purchase",
    "start begin commence",
    "fix repair",
    "big large",
    "photo picture photograph image",
    "movie film",
    "car automobile",
    "phone telephone",
    "cellphone cell-phone",
    "kid child",
    "quick fast rapid",
    "quickly rapidly",
    "smart intelligent clever",
    "happy joyful",
    "rich wealthy",
    "sad unhappy",
    "scared afraid frightened",
    "error mistake",
    "answer reply",
    "select choose pick",
    "obtain acquire",
    "permit allow",
    "modify alter",
    "verify confirm",
    "terminate end",
    "occur happen",
    "hard difficult",
    "easy simple",
    "entire whole",
    "doctor physician",
    "attorney lawyer",
    "job occupation",
    "shop store",
    "garbage trash rubbish",
    "usa america",
    "uk britain",
    "tv television",
    "info information",
    "app application",
    "wifi wi-fi",
    "login signin",
    "logout signout",
    "assist help",
    "colour color",
    "favourite favorite",
    "centre center",
    "theatre theater",
    "programme program",
    "organise organize",
    "realise realize",
    "recognise recognize",
    "analyse analyze",
    "customise customize",
    "cancelled canceled",
    "travelling traveling",
    "behaviour behavior",
    "neighbour neighbor",
    "licence license",
    "defence defense",
    "grey gray",
    "cheque check",
    "tyre tire",
    "maths math mathematics",
    "til till until",
)

# Only name the reason: a pair of unequal words is refused whether or not it stands here.
ANTONYMS: Final = _pairs(
    "upgrade downgrade",
    "increase decrease",
    "increase reduce",
    "before after",
    "buy sell",
    "on off",
    "in out",
    "up down",
    "with without",
    "from to",
    "monthly yearly",
    "monthly annual",
    "daily weekly",
    "weekly monthly",
    "open close",
    "add delete",
    "add subtract",
    "multiply divide",
    "accept reject",
    "accept decline",
    "accept refuse",
    "allow deny",
    "allow forbid",
    "allow prevent",
    "allow block",
    "start stop",
    "start end",
    "start finish",
    "push pull",
    "import export",
    "upload download",
    "send receive",
    "lend borrow",
    "give take",
    "win lose",
    "gain lose",
    "pass fail",
    "love hate",
    "like dislike",
    "true false",
    "right wrong",
    "right left",
    "good bad",
    "better worse",
    "best worst",
    "more less",
    "more fewer",
    "most least",
    "many few",
    "max min",
    "maximum minimum",
    "high low",
    "higher lower",
    "big small",
    "long short",
    "hot cold",
    "warm cool",
    "new old",
    "young old",
    "early late",
    "first last",
    "next previous",
    "past future",
    "always never",
    "all none",
    "everyone nobody",
    "public private",
    "safe dangerous",
    "easy hard",
    "happy sad",
    "rich poor",
    "quick slow",
    "strong weak",
    "full empty",
    "inside outside",
    "above below",
    "over under",
    "front back",
    "male female",
    "man woman",
    "boy girl",
    "father mother",
    "brother sister",
    "husband wife",
    "north south",
    "east west",
    "day night",
    "morning evening",
    "legal illegal",
    "login logout",
    "for against",
)
OPPOSING_PREFIXES: Final = ("un", "dis", "in", "im", "il", "ir", "non", "de", "mis", "anti")
OPPOSING_ENDS: Final = ("ful", "less")

CONTRACTED: Final[Mapping[str, tuple[str, ...]]] = {
    "can't": ("can", "not"),
    "cannot": ("can", "not"),
    "cant": ("can", "not"),
    "won't": ("will", "not"),
    "wont": ("will", "not"),
    "shan't": ("shall", "not"),
    "ain't": ("is", "not"),
    "let's": ("let", "we"),
    "i'm": ("i", "am"),
    "im": ("i", "am"),
    "whats": ("what", "is"),
    "hows": ("how", "is"),
    "wheres": ("where", "is"),
    "gonna": ("going", "to"),
    "wanna": ("want", "to"),
    **{
        f"{verb}nt": (verb, "not")
        for verb in ("do", "does", "did", "is", "are", "was", "could", "should", "would", "has")
    },
}
CONTRACTED_ENDS: Final[Mapping[str, str]] = {
    "n't": "not",
    "'m": "am",
    "'re": "are",
    "'ve": "have",
    "'ll": "will",
    "'d": "would",
}
# After these words 's is "is", after any other a possessive.
IS_AFTER: Final = _words("what who where when why how it that there here he she this")

PHRASES: Final[Mapping[tuple[str, ...], str]] = {
    ("log", "in"): "login",
    ("log", "into"): "login",
    ("log", "on"): "login",
    ("sign", "in"): "login",
    ("sign", "into"): "login",
    ("logging", "in"): "logging-in",
    ("signing", "in"): "logging-in",
    ("log", "out"): "logout",
    ("log", "off"): "logout",
    ("sign", "out"): "logout",
    ("sign", "up"): "signup",
    ("set", "up"): "setup",
    ("back", "up"): "backup",
    ("e", "mail"): "email",
    ("e", "mails"): "emails",
    ("wi", "fi"): "wifi",
    ("on", "line"): "online",
    ("used", "to"): "used-to",
    ("in", "order", "to"): "to",
    ("a", "lot", "of"): "many",
    ("lots", "of"): "many",
    ("per", "cent"): "percent",
    ("united", "states"): "usa",
    ("cell", "phone"): "cellphone",
}

IRREGULAR_PLURALS: Final[Mapping[str, str]] = {
    "children": "child",
    "people": "person",
    "men": "man",
    "women": "woman",
    "teeth": "tooth",
    "mice": "mouse",
    "geese": "goose",
    "wives": "wife",
    "lives": "life",
    "knives": "knife",
    "leaves": "leaf",
    "indices": "index",
    "criteria": "criterion",
}
NO_PLURALS: Final = _words(
    "news always species series means goods savings customs glasses lens bus gas plus canvas alias",
    "status virus bonus campus census texas paris james windows aws ios sms gps dns tls https",
    # Not several of what the singular names: securities, damages, bonds, terms of a contract.
    "securities futures damages premises dues earnings minutes proceeds contents terms arms",
    "spirits bonds",
)
