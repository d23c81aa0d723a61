"""Lookup by meaning: the embeddings service, the verifier, and the records of wrong hits.

The setting ``vectors`` chooses the vector index, in ``embeddings/index/text_index.py``.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from embeddings.client import EmbeddingsClient
from gateway.background import running
from gateway.cache.folder_watch import FolderWatch
from gateway.cache.quality.comparison_journal import COMPARISONS_FILE, ComparisonJournal
from gateway.cache.quality.comparisons import Comparisons
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.semantic.calibrations import Calibrations
from gateway.semantic.verifier import CalibratedVerifier, load_guards
from gateway.server.admin.semantic_report import Budgets
from gateway.server.open.judge import ModelJudge
from gateway.server.open.policy_file import PolicySource
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.upstream.request import Upstream

ENCODER_POLL_SECONDS = 0.1
ENCODER_WATCH_SECONDS = 2.0
"""Between two looks at an encoder that was ready once."""

_log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "process"}}


@dataclass(slots=True)
class EncoderState:
    """What the latest look at the encoder has found."""

    fault: str | None = "encoder: loading"
    was_ready: bool = False

    def note(self, fault: str | None) -> None:
        """Note what was found; log where it begins and ends, once it was ready."""
        if self.was_ready and (fault is None) != (self.fault is None):
            if fault is None:
                _log.info("the encoder answers again", extra=_EVENT)
            else:
                text = "%s: it does not answer, and questions are answered exactly or not at all"
                _log.warning(text, fault, extra=_EVENT)
        self.fault, self.was_ready = fault, self.was_ready or fault is None


@dataclass(frozen=True, slots=True)
class Semantic:
    """The parts of lookup by meaning; without ``service`` there is no such lookup."""

    service: EmbeddingsClient | None
    verifier: CalibratedVerifier
    quarantine: QuarantineFile
    journal: ComparisonJournal
    comparisons: Comparisons
    budgets: Budgets
    watch: FolderWatch
    encoder: EncoderState = field(default_factory=EncoderState)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self.service is not None:
                stack.push_async_callback(self.service.close)
                watch = partial(self._watch_encoder, self.service)
                await stack.enter_async_context(running("watch of the encoder", watch))
            await asyncio.to_thread(self.quarantine.compact)
            await stack.enter_async_context(self.watch.lifespan())
            stack.push_async_callback(self.comparisons.close)
            yield

    async def _watch_encoder(self, service: EmbeddingsClient) -> None:
        # This worker may never get a readiness check.
        while await service.not_ready() is not None:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(ENCODER_POLL_SECONDS)
        self.budgets.warn()
        while True:
            # A policy may begin to need them. No question waits for their files.
            try:
                if self._is_needed():
                    await asyncio.to_thread(load_guards)
            finally:
                # Exact hits need no encoder: a fault of its files keeps no gateway from its start.
                self.encoder.note(await service.not_ready())
            await asyncio.sleep(ENCODER_WATCH_SECONDS)

    async def not_ready(self) -> str | None:
        """Return why the encoder has not been ready yet, if a rule of the policy needs it.

        Later faults are in the details: exact hits and misses need no encoder.
        """
        if self.service is None or self.encoder.was_ready or not self._is_needed():
            return None
        return await self.service.not_ready() or "encoder: loading"

    def _is_needed(self) -> bool:
        decisions = self.budgets.policies.active.policy.decisions
        return any(each.semantic or each.compress.enabled for each in decisions)

    def details(self) -> dict[str, Any]:
        service, vectors = self.service, {}
        if service is not None:
            vectors["index"] = service.latest.index
            lost = self.encoder.fault if self.encoder.was_ready else None
            if fault := lost or service.latest.fault:
                vectors["fault"] = fault
        return {
            "semantic": "off" if service is None else "on",
            "vectors": vectors,
            "verifier": {} if service is None else self.verifier.details(),
            "rules_off": sorted(rule for rule, off in self.journal.rules_off().items() if off),
            "budgets_not_kept": self.budgets.budgets_missed(),
        }


def open_semantic(
    settings: Settings,
    socket: Path | None,
    *,
    policies: PolicySource,
    upstream: Upstream,
    metrics: Metrics,
) -> Semantic:
    """Return the parts; ``socket`` is the embeddings service's, None where it is not installed."""
    service = None
    if socket is not None:
        service = EmbeddingsClient(
            socket, timeout=settings.semantic_timeout, max_wait=settings.semantic_wait
        )
    calibrations = Calibrations(settings.data_dir)
    verifier = CalibratedVerifier(service, calibrations, seconds=settings.verifier_timeout)
    quarantine = QuarantineFile(settings.data_dir / "quarantine.jsonl")
    journal = ComparisonJournal(settings.data_dir / COMPARISONS_FILE, quarantine)
    metrics.add_rules_off(journal.rules_off)
    metrics.add_distances(verifier.traffic.distances)
    judge_model = settings.semantic_judge_model
    comparisons = Comparisons(
        journal,
        quarantine,
        index=service,
        encoder=service,
        now=time.time,
        threshold=verifier.threshold,
        count=metrics.count_comparison,
        with_text=settings.decision_log_text,
        judge=None if judge_model is None else ModelJudge(upstream, judge_model),
    )
    budgets = Budgets(
        policies,
        is_known=lambda: service is not None and service.verifier is not None,
        threshold=verifier.threshold,
    )
    watch = FolderWatch([quarantine, journal, calibrations])
    return Semantic(service, verifier, quarantine, journal, comparisons, budgets, watch)
