"""The verifier at work in the service: pairs wait in turn, threads of their own score them.

Laws: without a verifier, for whatever reason, the service goes on and says why; how many pairs wait
is bounded, and how long.
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

from embeddings.batching import Batcher, OverloadedError
from embeddings.encoder.model_files import ModelError
from embeddings.messages import MAX_FIELD, Pair, Reason, Scored

# Pairs that go to a thread together: a few, so that those who leave meanwhile cost little.
MAX_BATCH: Final = 8
MAX_WAITING: Final = 1024
MAX_WAIT_SECONDS: Final = 0.25
"""Half of what a gateway waits for a score by default. After a wait that was too long it asks for
no score during a second, so a pair that would wait so long is refused at once."""

_log = logging.getLogger(__name__)


class PairScorer(Protocol):
    """What scores pairs on any thread: a Verifier, whose import takes half a second."""

    name: str
    digest: str
    fault: str

    def score(self, pairs: Sequence[Pair]) -> list[Scored]:
        """Return for each pair its score, or the reason for having none."""
        ...


class PairScores:
    """Made by `open_pair_scores`; belongs to one event loop.

    `fault` says why there is no verifier, or why its second network is not used.
    """

    def __init__(
        self,
        verifier: PairScorer | None,
        threads: ThreadPoolExecutor,
        fault: str = "",
        lanes: int = 1,
    ) -> None:
        self.name = "" if verifier is None else verifier.name
        self.digest = "" if verifier is None else verifier.digest
        self.fault = fault
        self._waiting: Batcher[Pair, Scored] | None = None
        if verifier is not None:
            self._waiting = Batcher(
                verifier.score,
                threads,
                max_batch=MAX_BATCH,
                max_waiting=MAX_WAITING,
                lanes=lanes,
            )

    async def score(self, pairs: Sequence[Pair]) -> tuple[float, ...] | Reason:
        """Return the pairs' scores, or the first reason for there being none.

        Raises OverloadedError.
        """
        if self._waiting is None:
            return Reason.UNAVAILABLE
        if self._waiting.wait_seconds > MAX_WAIT_SECONDS:
            raise OverloadedError(f"pairs would wait for over {MAX_WAIT_SECONDS} s")
        scored = await asyncio.gather(*map(self._waiting.submit, pairs))
        scores: list[float] = []
        for score in scored:
            if isinstance(score, Reason):
                return score
            scores.append(score)
        return tuple(scores)


async def open_pair_scores(directory: Path, lanes: int) -> PairScores:
    """Load and warm the verifier in `directory`; `lanes` pairs are scored side by side.

    Raises nothing: what went wrong is the fault.
    """
    threads = ThreadPoolExecutor(lanes, "verifier")

    def load() -> PairScorer:
        module = import_module("embeddings.verify.verifier")
        loaded: PairScorer = module.load_verifier(directory, threads=1)
        if loaded.fault:
            _log.warning("verifier: %s", loaded.fault)
        return loaded

    try:
        verifier = await asyncio.get_running_loop().run_in_executor(threads, load)
    except Exception as error:  # noqa: BLE001 - told in the status, whatever it is
        if not isinstance(error, ModelError | ImportError):
            _log.exception("the verifier cannot be loaded")
        return PairScores(None, threads, str(error)[:MAX_FIELD])
    return PairScores(verifier, threads, verifier.fault[:MAX_FIELD], lanes)
