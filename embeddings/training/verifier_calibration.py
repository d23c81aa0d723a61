"""``python -m embeddings.training.verifier_calibration``: calibrate the trained verifier.

The log in ``calibration/`` was written for this and is not trained on: a stored question, the same
asked by another person, a near miss. All first lines of a folder are stored; each other line is
asked, and its nearest four are checked as the gateway checks them. Its surest candidate is the
would-be hit. A folder has one writer, since two write the same question without knowing of it.
Questions that the gateway would not look up by meaning were taken out of the log.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from embeddings.messages import Reason, Scored
from embeddings.training.groups import Group, read_groups
from embeddings.training.vectors import sentence_vectors
from embeddings.verifier import Verifier, load_verifier
from embeddings.verify.agreement import agree
from embeddings.verify.calibration import calibrated
from embeddings.verify.calibration_file import written_calibration
from embeddings.verify.guards import guard

NEAREST: Final = 4
LEAST_COSINE: Final = 0.75
"""As the gateway searches where its policy does not say otherwise."""
_LOG: Final = Path(__file__).parent / "calibration"
_MODEL: Final = Path(__file__).parents[1] / "verify" / "model"
_BUDGETS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)


def main() -> None:
    """Write the file beside the weights, and say what each budget keeps."""
    pools = [read_groups(folder) for folder in sorted(_LOG.iterdir())]
    groups = [group for pool in pools for group in pool]
    verifier = load_verifier(_MODEL, threads=os.cpu_count() or 1)
    asks = sum(len(group.same) - 1 + len(group.misses) for group in groups)
    points = [point for pool in pools for point in _would_be_hits(pool, verifier)]
    provenance = (
        f"{asks:,} questions asked of {len(groups):,} stored, written for this and held out"
    )
    calibration = calibrated(points, verifier=verifier.digest, provenance=provenance)
    (_MODEL / "calibration.json").write_bytes(written_calibration(calibration))
    right = sum(len(group.same) - 1 for group in groups)
    print(f"{provenance}; {len(points)} would-be hits, {sum(wrong for _, wrong in points)} wrong")
    for budget in _BUDGETS:
        step = calibration.step(budget)
        kept = "none is known" if step is None else _kept(step.threshold, points, right)
        print(f"  at most {budget:6.1%} wrong: {kept}")


def _kept(threshold: float, points: Sequence[tuple[float, bool]], right: int) -> str:
    hits = [wrong for score, wrong in points if score >= threshold]
    found = len(hits) - sum(hits)
    return (
        f"score {threshold:.4f}, {len(hits)} hits, {sum(hits)} wrong, {found / right:.1%} of "
        "those that could be served"
    )


def _would_be_hits(groups: Sequence[Group], verifier: Verifier) -> Iterator[tuple[float, bool]]:
    """Yield score and whether it is wrong of the surest candidate that the guards let pass."""
    stored = [group.same[0] for group in groups]
    asked = [(text, number) for number, group in enumerate(groups) for text in group.same[1:]]
    asked += [(text, -1) for group in groups for text in group.misses]
    index, wanted = sentence_vectors(stored), sentence_vectors([text for text, _ in asked])
    for place, (text, owner) in enumerate(asked):
        cosine = index @ wanted[place]
        nearest = np.argsort(-cosine)[:NEAREST]
        candidates = [
            other
            for other in nearest
            if cosine[other] >= LEAST_COSINE and guard(text, stored[other]) is None
        ]
        scores = [_score(verifier, text, stored[other]) for other in candidates]
        scored = [
            (score, int(other) != owner)
            for score, other in zip(scores, candidates, strict=True)
            if not isinstance(score, Reason)
        ]
        if scored:
            yield max(scored)


def _score(verifier: Verifier, asked: str, stored: str) -> Scored:
    # What the rules without a model pass is not scored, as in the gateway.
    return 1.0 if agree(asked, stored) is None else verifier.score([(asked, stored)])[0]


if __name__ == "__main__":
    main()
