"""The trained verifier in this process, behind the port through which the gateway asks for scores.

Law: a pair is scored once for each set of weights, in whichever order it comes.
"""

from pathlib import Path
from struct import pack, unpack

from embeddings.messages import Reason
from embeddings.verify.files import read_verifier
from embeddings.verify.verifier import Verifier, load_verifier
from gateway.semantic.ports import SemanticUnavailableError
from quality.kept import Kept


class Scores:
    """See ``gateway.semantic.verifier.Scorer``. The weights are loaded when a pair is new."""

    def __init__(self, directory: Path, kept: Kept) -> None:
        self.verifier: str | None = read_verifier(directory).digest
        self.verifier_fault = ""
        self._directory = directory
        self._kept = kept
        self._loaded: Verifier | None = None

    async def score(self, asked: str, stored: str) -> float:
        pair = "\0".join(sorted((asked, stored)))
        maker = f"verifier {self.verifier}"
        known = self._kept.find(maker, [pair]).get(pair)
        if known is None:
            known = self._scored(asked, stored)
            self._kept.keep(maker, {pair: known})
        if len(known) != 8:
            raise SemanticUnavailableError(known.decode())
        return float(unpack("<d", known)[0])

    def _scored(self, asked: str, stored: str) -> bytes:
        if self._loaded is None:
            self._loaded = load_verifier(self._directory, threads=1)
        (score,) = self._loaded.score([(asked, stored)])
        return score.value.encode() if isinstance(score, Reason) else pack("<d", score)
