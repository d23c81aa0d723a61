"""Rare words, which the network cannot tell apart: each must stand in both questions. Pure.

A network reads a rare word in pieces, and cannot tell "prednisone" from "prednisolone". So a word
that is not common has to stand in both texts. Its inflection, its other spelling and its parts
written apart are the same word. Everything else is another name.
"""

import re
import unicodedata
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from embeddings.verify.guards.names import ALIASES, BEHIND_A_NUMBER
from embeddings.verify.guards.numbers import UNITS
from embeddings.verify.guards.reader import FUNCTION, LONGEST, Kind, Reading, words_of

# Each is spelt in two ways: British and American, or with and without a ligature.
_SPELLINGS: Final = (
    (re.compile("ae|oe"), "e"),
    (re.compile("ph"), "f"),
    (re.compile("our(?=s?$|ed$|ing$|ite|able)"), "or"),
    (re.compile("(?<=...)(?<!w)([iy])s(?=e|ing|ation)"), r"\1z"),
    (re.compile("tre(?=s?$)"), "ter"),
    (re.compile("ogue(?=s?$)"), "og"),
    (re.compile("ll(?=ed$|ing$|er$|ment)"), "l"),
)

_UNHEARD: Final = re.compile("[aeiouy]|(.)(?=\\1)")
_SINGULAR_VERBS: Final = words_of("is was does did has")
# Of an ordinary word an ordinary one is made: "friendlier", "reopen".
_DERIVED: Final = re.compile("^(?:un|re|over|mis)|(?:er|est|ly|ness|able)$")
_STEM: Final = 3
_NO_INITIALS: Final = words_of("of the and")
_SHORT: Final = 50
_ABBREVIATION: Final = 6
"""So short is "p.m" or "e.g"."""
_EVERYDAY: Final = words_of(
    """
    abort acne admin advert advertise aeroplane allergy alphabetical antivirus apiece append
    authenticate authenticator autocorrect autopay avocado babysit babysitter backend bake banknote
    barcode bathtub bbq bedtime beep beginner biweekly bleach blister blockchain blueberry bluetooth
    bookkeeping bookmark bookshelf bookshop breastfeed brownie browse burglar burglary burnout
    buttermilk calorie caption carb carbohydrate carton cashew cashier cashpoint chargeback
    checkbook checkbox checklist checkout cheesecake cheque chickenpox chickpea chopstick
    circumference clamp clog coleslaw comma commute compost compress concise condolence config
    configure congratulate constipation contactless contagious coolant coupon courteous coworker
    cranberry crave crease crispy crochet croissant cucumber cursor dashcam daycare deactivate
    deadlock debit decaf deduct deductible deduction defrost dehydrate delete deletion descale
    diabetic diagnose diaper dilute diminish dimmer disable disappoint discard disconnect
    discontinue dishwasher dividend divisible doable dosage downgrade downside downtime drawback
    drowsy dryer drywall earphone embarrass emoji enrol etiquette evict eviction expiration expire
    expiry extrovert eyesight factorial faucet fertilizer feverish filename fingerprint firewall
    flatmate flatter fluency forgetful formulate fortnight gadget giraffe goldfish grandchild
    grandparent grocer guacamole haggle haircut hairdresser handmade handset hashtag headlight
    headphone headset heartburn hedgehog hiccup hiker homeowner homesick hotline hotspot houseplant
    housework hummus hyphen icing illegible impolite inbox insecure instal instalment insure
    introvert invalidate invoice itinerary jobless jog keychain keyword knead landlady landline
    lasagna layover leftover legible lemonade lengthen lentil loaves login logout lookup lorry
    lunchbox lunchtime mailbox margarine meatball meditate memorize mend migraine mileage minibus
    minivan mitten modem motivate motorbike mould mow mower muffin multiply nappy nicer nicest
    notify nutritious oat oatmeal oclock offend offline omelette oops outage outlive outnumber
    overdue painkiller pancake paramedic passcode passkey paycheck payday payout payslip pessimistic
    pharmacist photocopier photosynthesis physiotherapist picky pineapple playlist pls plugin
    plumber postcode postpone pothole preorder prepaid prescribe procrastinate procrastination
    projector prolong pronounce proofread prune punctual purr quinoa raffle raincoat readable
    recline recruiter rectangle recursion recursive redeem redo referral refrigerate reimburse
    reimbursement renovate renter reorder retry revise revoke ringtone rinse ripen risotto rucksack
    safest salesperson sauna scam scammer scarves scooter screenshot selfie sew sewn shampoo sharpen
    shoelace shopkeeper shopper shortcut shorten shutdown simplify sitter sleepless smartwatch
    sneeze snooze snore soak spam spelt spinach spreadsheet sprout stash stopover stopwatch
    stressful subfolder sublet subscribe subtitle subtract suffice summarize sunburn sunburnt
    sunscreen surcharge sushi tablespoon taxable teaspoon tenancy thaw thermometer thermostat thrice
    thunderstorm timeout timesheet timestamp timezone toddler toothache toothbrush topup tortoise
    troubleshoot tummy tutorial typo underestimate uninsured unset upkeep upload uptime url username
    vaccinate vaccination vape vat veg vegan veggie vibrate voicemail voucher waffle waive wallpaper
    warranty watermelon waterproof webcam webpage whine whiten widget wifi windscreen woollen
    workbook workday workflow workload workmate worksheet workspace worthwhile yawn yoghurt yogurt
    yolk
    """
)
"""Ordinary words that the vocabulary has in pieces only."""


def differ_in_rare_words(a: Reading, b: Reading, common: Container[str]) -> str | None:
    """Return "words" if a word that is not common has no counterpart in the other text."""
    mine, theirs = (
        {x.text for x in one.tokens if x.kind is Kind.WORD and x.text not in other.vocabulary}
        for one, other in ((a, b), (b, a))
    )
    lacks = (
        _lacks(a, b, [word for word in mine if is_rare(word, common)]) or _lacks_version(a, b),
        _lacks(b, a, [word for word in theirs if is_rare(word, common)]) or _lacks_version(b, a),
    )
    # A story is told in many words, of which one may be rare.
    short = len(a.words) + len(b.words) < _SHORT
    if all(lacks) or (short and any(lacks)):
        return "words"
    other = _spelt_alike(mine, theirs) or _no_plural(a, b) or _no_plural(b, a)
    return "words" if other else None


def is_rare(word: str, common: Container[str]) -> bool:
    """Tell whether the network reads a word in pieces, and the word is no ordinary one."""
    if len(word) < 2 or word in FUNCTION or word in common:
        return False
    of = _DERIVED.sub("", word)
    made = word != of and len(of) > _STEM
    found = {of, of + "e", of[:-1] + "y"} if made else set()
    return not any(form in common or form in _EVERYDAY for form in found | _forms(word))


def _lacks(mine: Reading, theirs: Reading, rare: Sequence[str]) -> bool:
    """Tell whether one of my rare words has no counterpart in the other text."""
    if not rare:
        return False
    known = {form for word in theirs.vocabulary for form in _forms(word)}
    known |= {one + other for one, other in pairwise(theirs.words)}
    # "Wi fi" for "wifi".
    pairs = [pair for pair in pairwise(mine.words) if pair[0] + pair[1] in theirs.vocabulary]
    parts = {word for pair in pairs for word in pair}
    initials = "".join([word[0] for word in theirs.words if word not in _NO_INITIALS])
    return not all(
        not known.isdisjoint(_forms(word))
        or word in parts
        or _part_is_known(word, theirs.vocabulary)
        or (len(word) > 2 and word in initials)
        for word in rare
    )


def _lacks_version(mine: Reading, theirs: Reading) -> bool:
    """Tell whether the other text lacks what stands behind a number in mine: "gpt-4o", "log4j"."""
    return any(
        token.glued and token.kind is Kind.WORD and token.text not in theirs.vocabulary
        for token in mine.tokens
        if token.text not in BEHIND_A_NUMBER
    )


def _part_is_known(word: str, vocabulary: frozenset[str]) -> bool:
    """Tell whether the other text has "node" for "node.js"."""
    part, dot, _ = word.partition(".")
    return bool(dot and len(part) > 2 and part in vocabulary)


def _spelt_alike(mine: set[str], theirs: set[str]) -> bool:
    """Tell whether each has one of "gonzales" and "gonzalez", which the network takes for one."""
    left, right = (
        {_consonants(x) + x[-1] * x.endswith("y"): x for x in words if len(x) > 5}
        for words in (mine, theirs)
    )
    return any(
        left[key][0] == right[key][0]
        and abs(len(left[key]) - len(right[key])) < 2
        and not left[key].startswith(right[key])
        and not right[key].startswith(left[key])
        and _forms(left[key]).isdisjoint(_forms(right[key]))
        for key in left.keys() & right.keys()
    )


def _no_plural(one: Reading, several: Reading) -> bool:
    """Tell whether "Watts" is no plural of "Watt", as a singular verb or "by" is before them.

    A noun that is no name would have an article there.
    """
    before = {word: last for last, word in _pairs(one)}
    for last, word in _pairs(several):
        single = word[:-1] if word[-1] == "s" else ""
        if single in before and word not in one.vocabulary and single not in several.vocabulary:
            both = {before[single], last}
            if both & _SINGULAR_VERBS or both == {"by"}:
                return True
    return False


def _pairs(text: Reading) -> Iterator[tuple[str, str]]:
    # "What is price of it?" asks for a noun, with or without an article.
    return (
        (last, word)
        for last, word in pairwise(text.words)
        if last != "is" or "what" not in text.vocabulary
    )


def _consonants(word: str) -> str:
    return _UNHEARD.sub("", word.replace("z", "s"))


def _forms(word: str) -> frozenset[str]:
    return forms(word) if len(word) <= LONGEST else frozenset({word})


@lru_cache(4096)
def forms(word: str) -> frozenset[str]:
    """Return a word and what it may be an inflection of, in one spelling."""
    if not word.isascii():
        word = "".join(
            x for x in unicodedata.normalize("NFKD", word) if not unicodedata.combining(x)
        )
    word = word.replace(".", "") if len(word) < _ABBREVIATION else word
    found = {word, *_uninflected(word)} | {UNITS.get(word, word), ALIASES.get(word, word)}
    return frozenset(found | {_one_spelling(form) for form in found})


def _one_spelling(word: str) -> str:
    for pattern, put in _SPELLINGS:
        word = pattern.sub(put, word)
    return word


def _uninflected(word: str) -> Iterator[str]:
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        yield word[:-1]
        if word.endswith("es"):
            yield word[:-2]
        if word.endswith("ies"):
            yield word[:-3] + "y"
    for ending in ("ed", "ing"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            stem = word[: -len(ending)]
            yield stem
            yield stem + "e"
            if stem[-1] == stem[-2]:
                yield stem[:-1]
            if ending == "ed" and stem[-1] == "i":
                yield stem[:-1] + "y"
