"""Two sides of one matter, whose words stand in like sentences: buyer and seller. Pure.

The network takes such words for one another, as their neighbours are the same.
"""

from typing import Final

from embeddings.verify.guards.reader import Reading, words_of

_MATTERS: Final = tuple(
    tuple(words_of(side) for side in matter.split("/"))
    for matter in """
    buyer buyers purchaser customer customers / seller sellers vendor vendors supplier suppliers;
    landlord landlords landlady / tenant tenants renter renters lodger;
    lender lenders creditor creditors / borrower borrowers debtor debtors;
    plaintiff plaintiffs claimant prosecutor prosecution / defendant defendants accused respondent;
    employer employers / employee employees staff worker workers;
    trainer trainers teacher teachers tutor / trainee trainees pupil pupils student students;
    doctor doctors physician surgeon dentist / patient patients;
    parent parents / child children; sender senders / recipient recipients receiver receivers;
    host hosts / guest guests; author authors / publisher publishers editor editors;
    driver drivers / passenger passengers; donor donors / recipient recipients;
    insurer insurers / insured policyholder policyholders; importer importers / exporter exporters;
    producer producers / consumer consumers; publisher publishers / subscriber subscribers;
    merchant merchants / consumer consumers; wholesaler wholesalers / retailer retailers;
    speaker speakers / listener listeners; attacker attackers / victim victims;
    leader leaders / follower followers; witness witnesses / suspect suspects; judge / jury;
    architect architects / builder builders; owner owners / operator operators tenant tenants;
    principal / agent; trustee trustees / beneficiary beneficiaries; executor / testator heir;
    investor investors / founder founders; contractor contractors / client clients;
    winner winners / loser losers; import / export; revenue / profit; concave / convex;
    latitude / longitude; horizontal horizontally / vertical vertically; vowel / consonant;
    ascending / descending; meteor meteors / comet comets; artery arteries / vein veins;
    numerator / denominator
    """.split(";")  # noqa: SIM905
)


def differ_in_counterparts(a: Reading, b: Reading) -> str | None:
    """Return "words" if each text has another side of one matter, and they share none."""
    for one, other in _MATTERS:
        mine, theirs = (
            (not one.isdisjoint(text.vocabulary), not other.isdisjoint(text.vocabulary))
            for text in (a, b)
        )
        if {mine, theirs} == {(True, False), (False, True)}:
            return "words"
    return None
