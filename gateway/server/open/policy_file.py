"""The policy file on disk: read at start, watched, and replaced whole by each good edit."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gateway.cache.ports import Scanner
from gateway.prompts.rewrite.volatile import finder
from gateway.server.open.watched_file import WatchedFile
from policies.decision import PiiAction
from policies.format.load import parse_policy
from policies.format.yaml_document import policy_text
from policies.pii.scan import PiiScanner
from policies.policy import Policy
from policies.recorded import RecordedPolicy, recorded_policy

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """The policy in force and the scanner for its regions; replaced whole on a reload."""

    policy: Policy
    scanner: Scanner
    recorded: RecordedPolicy
    """The policy in the form that the decision log needs."""
    pii_identities: Mapping[PiiAction, str]
    """The part of cache keys for the scan that a prompt passed, by action."""


class PolicySource(Protocol):
    """Holds the last good policy."""

    @property
    def active(self) -> ActivePolicy: ...


class PolicyFile(WatchedFile[ActivePolicy]):
    """Holds the last good policy of a file.

    Raises PolicyError or OSError on construction: without a policy there is no gateway.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _activate, "policy: keeping the last good policy")

    def details(self) -> dict[str, Any]:
        policy = self.active.policy
        return {"source": policy.source, "generation": policy.generation, "problem": self.problem}

    async def watch(self, seconds: float, reloaded: Callable[[bool], None]) -> None:
        """Look for an edit every ``seconds`` until cancelled.

        Polling the content, not events: editors rename, and mounted volumes drop events.
        """
        while True:
            await asyncio.sleep(seconds)
            before = self.problem
            changed = await asyncio.to_thread(self.reload)
            if changed:
                generation = self.active.policy.generation
                text = "policy: %s reloaded, generation %d"
                log.info(text, self.path, generation, extra={"fields": {"event": "policy"}})
            if changed or self.problem != before:
                reloaded(self.problem is None)


def _activate(data: bytes, source: str) -> ActivePolicy:
    policy = parse_policy(policy_text(data, source), source)
    for prefix in {decision.prefix for decision in policy.decisions}:
        if prefix.volatile or prefix.patterns:  # compiled and used once: no request waits for that
            any(finder(prefix.volatile, prefix.patterns).find(b"2026-01-01"))
    scanner = PiiScanner(policy.regions, policy.allowed)
    identities = {action: f"{action}/{scanner.identity}" for action in PiiAction}
    return ActivePolicy(policy, scanner, recorded_policy(policy), identities)
