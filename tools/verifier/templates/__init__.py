"""Labelled pairs of questions, written by rule: minimal pairs and their rewordings.

Frames (``frames/FAMILY.txt``) hold meanings and the phrasings of each; words (``words/KIND.txt``)
fill their slots. All is written for this project from general knowledge of English; no test suite,
data set or evaluation data is copied or looked at.
"""

from tools.verifier.templates.generation import Pair, families, generate

__all__ = ["Pair", "families", "generate"]
