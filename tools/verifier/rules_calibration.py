"""``python -m tools.verifier.rules_calibration``: calibrates the rules without a model.

The rules were written before these pairs and are not fitted to them. They are pairs by rule as
well, so that the file says of which questions its figures are.
"""

import sys
from random import Random

from embeddings.encoder.model_files import VERIFIER_DIRECTORY
from embeddings.verify.agreement import agree
from embeddings.verify.calibration import RULES, calibrated
from embeddings.verify.calibration_file import written_calibration
from tools.verifier.templates import generate

SEED = 20261121
PAIRS = 38_000


def main() -> None:
    """Write the file beside the verifier's, which is installed with them."""
    points = [
        (1.0, not pair.same)
        for pair in generate(Random(SEED), PAIRS)
        if agree(pair.a, pair.b) is None
    ]
    provenance = f"{PAIRS:,} pairs of tools.verifier.templates, seed {SEED}"
    calibration = calibrated(points, verifier=RULES, provenance=provenance)
    file = VERIFIER_DIRECTORY / "rules-calibration.json"
    file.write_bytes(written_calibration(calibration))
    sys.stdout.write(f"{file}: {calibration.steps}\n")


if __name__ == "__main__":
    main()
