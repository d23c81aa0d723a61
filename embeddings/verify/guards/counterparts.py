"""Two sides of one matter, whose words stand in like sentences: buyer and seller. Pure.

The network takes such words for one another, as their neighbours are the same.
"""

from typing import Final

from embeddings.verify.guards.reader import Reading

_MATTERS: Final = """
    buyer purchaser customer / seller vendor supplier; landlord landlady / tenant renter lodger;
    lender creditor / borrower debtor; plaintiff claimant prosecutor / defendant accused respondent;
    employer / employee staff worker; trainer teacher tutor / trainee pupil student;
    doctor physician surgeon dentist / patient; parent / child children; sender donor / recipient;
    sender / receiver; host / guest; author / publisher editor; driver / passenger;
    insurer / insured policyholder; importer / exporter; producer merchant / consumer;
    publisher / subscriber; wholesaler / retailer; speaker / listener; attacker / victim;
    leader / follower; witness / suspect; judge / jury; architect / builder;
    owner / operator tenant; principal / agent; trustee / beneficiary; executor / testator heir;
    investor / founder; contractor / client; winner / loser; import / export; revenue / profit;
    latitude / longitude; horizontal / vertical; horizontally / vertically; vowel / consonant;
    ascending / descending; meteor / comet; artery / vein; concave / convex;
    numerator / denominator; predator hunter / prey; felony / misdemeanor; alpha / beta
"""
_SIDES: Final[dict[str, set[tuple[int, int]]]] = {}
for _number, _matter in enumerate(_MATTERS.split(";")):
    for _side, _words in enumerate(_matter.split("/")):
        for _word in _words.split():
            _SIDES.setdefault(_word, set()).add((_number, _side))


def differ_in_counterparts(a: Reading, b: Reading) -> str | None:
    """Return "words" if each text has another side of one matter, and they share none."""
    mine, theirs = _sides(a), _sides(b)
    opposed = any(
        (matter, 1 - side) in theirs - mine and (matter, side) not in theirs
        for matter, side in mine
    )
    return "words" if opposed else None


def _sides(text: Reading) -> set[tuple[int, int]]:
    """Return the numbers of matters and sides that a text names."""
    found: set[tuple[int, int]] = set()
    for word in text.vocabulary:
        found |= _SIDES.get(word) or _SIDES.get(word.removesuffix("s")) or set()
    return found
