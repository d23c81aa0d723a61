"""Word lists of the guards: general English, written from general knowledge or from WordNet.

Nothing here comes from evaluation data. A word that is missing from a list costs little: what is
not known is left to the verifier.
"""
