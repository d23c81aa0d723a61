"""The policy file on disk: read at start, watched, and replaced whole by each good edit."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.cache.ports import ActivePolicy
from gateway.prompts.rewrite.volatile import finder
from policies.decision import PiiAction
from policies.format.load import PolicyError, parse_policy
from policies.format.yaml_document import policy_text
from policies.pii.scan import PiiScanner
from policies.policy import Policy
from policies.recorded import recorded_policy

log = logging.getLogger(__name__)


class PolicyFile:
    """Holds the last good policy of ``path``.

    Raises PolicyError or OSError on construction: without a policy there is no gateway.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = path.read_bytes()
        self._seen = self._data
        self.active = _activate(self._data, path)
        self._unreadable: str | None = None
        self._wrong: str | None = None

    @property
    def problem(self) -> str | None:
        """What keeps the file on disk from being in force, or None."""
        return self._unreadable or self._wrong

    def details(self) -> dict[str, Any]:
        """Return what ``/readyz`` shows of the policy."""
        policy = self.active.policy
        return {
            "source": policy.source,
            "generation": policy.generation,
            "problem": self.problem,
        }

    def reload(self) -> bool:
        """Read the file again; return whether a new policy took effect.

        An edit counts once two readings agree: an editor may be found half-way through writing.
        Whatever is wrong keeps the policy in force and stands in ``problem``.
        """
        try:
            data = self._path.read_bytes()
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            if problem != self._unreadable:
                self._complain(problem)
            self._unreadable = problem
            return False
        self._unreadable = None
        settled = data == self._seen
        self._seen = data
        if data == self._data or not settled:
            return False
        self._data = data
        try:
            self.active = _activate(data, self._path)
        except (PolicyError, ValueError) as error:
            self._wrong = str(error)
            self._complain(self._wrong)
            return False
        self._wrong = None
        generation = self.active.policy.generation
        log.info("policy: %s reloaded, generation %d", self._path, generation)
        return True

    def _complain(self, problem: str) -> None:
        log.error("policy: keeping the last good policy: %s", problem)

    async def watch(self, seconds: float, reloaded: Callable[[bool], None]) -> None:
        """Look for an edit every ``seconds`` until cancelled.

        Polling the content, not events: editors rename, and mounted volumes drop events.
        """
        while True:
            await asyncio.sleep(seconds)
            before = self.problem
            changed = await asyncio.to_thread(self.reload)
            if changed or self.problem != before:
                reloaded(self.problem is None)


def _activate(data: bytes, path: Path) -> ActivePolicy:
    policy = parse_policy(policy_text(data, str(path)), str(path))
    _ready(policy)
    scanner = PiiScanner(policy.regions, policy.allowed)
    identities = {action: f"{action}/{scanner.identity}" for action in PiiAction}
    return ActivePolicy(policy, scanner, recorded_policy(policy), identities)


def _ready(policy: Policy) -> None:
    """Compile what finds volatile text, and use it once: the first request would wait for that."""
    for decision in (policy.default, *(rule.decision for rule in policy.rules)):
        prefix = decision.prefix
        if prefix.volatile or prefix.patterns:
            any(finder(prefix.volatile, prefix.patterns).find(b"2026-01-01"))
