"""Nouns of which one is told from another by a letter: gate a, plan d, vitamin c."""

from typing import Final

from embeddings.verify.lists import words

LABELLED_VERBS: Final = words(
    """
    answer block book box chapter code command counter dock drive exercise exhibit exit figure flag
    form grade group item key level list model note object option panel park part pipe plan plant
    plug point port position pump question route row rule sample schedule seat sequence set shift
    side size slot spot stage stand step store string switch table task team test tier track train
    type unit
    """
)
"""Those that somebody may do as well: "how do I plan a trip"."""

LABELLED: Final = LABELLED_VERBS | words(
    """
    aisle annex annexe apartment appendix article axis bay bin booth branch bus cabin cabinet cable
    candidate carriage category chord class clause coach coenzyme column corridor court deck door
    elevator entrance entry escalator factor flat flight floor formula gate goal haemophilia hall
    hangar hemophilia hepatitis influenza lane letter lift line locker lot machine method module
    node pair paragraph period phase pier platform player pole pool quarter ramp room scenario
    section sector segment series server shed shelf socket staircase stairwell station strain strand
    suite supplement tank terminal tower variant vector version vitamin ward warehouse window wing
    zone
    """
)

NUMBERED: Final = words(
    "act appendix article category chapter class factor grade group level part phase schedule "
    "section series stage tier title type volume"
)
"""Those that go by Roman numbers, of which the first looks like "I"."""
