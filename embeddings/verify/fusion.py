"""The verifier's score and the cosine of the two questions, weighed against each other.

The network reads words and tells what is different; how near two questions are in meaning as a
whole the encoder knows better. How the weight was found: benchmarks/LOG.md.
"""

import math
from typing import Final

WEIGHT: Final = 8.0
"""In units of the logit, for a whole unit of cosine."""
MIDDLE: Final = 0.85
"""The cosine at which a score stays as it is."""


def weighed(score: float, cosine: float, weight: float = WEIGHT) -> float:
    """Return a score of 0 to 1 from both; whatever is no number makes none."""
    if not 0 < score < 1:
        return score
    if math.isnan(cosine):
        return cosine
    near = max(-1.0, min(1.0, cosine))
    # By odds and not by logits, so that no score is too small for an exponential.
    odds = score / (1.0 - score) * math.exp(weight * (near - MIDDLE))
    return odds / (1.0 + odds)
