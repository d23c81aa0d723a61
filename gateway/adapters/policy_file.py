"""The policy file on disk: read at start, watched, and replaced whole by each good edit."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from gateway.ports import ActivePolicy
from policies.decide import Policy
from policies.parse import PolicyError, parse_policy
from policies.pii import DETECTOR_VERSION, PiiScanner

log = logging.getLogger(__name__)


class PolicyFile:
    """Holds the last good policy of ``path``.

    Raises PolicyError or OSError on construction: without a policy there is no gateway.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = path.read_bytes()
        self._active = activate(_parse(self._text, path))
        self.problem: str | None = None

    @property
    def active(self) -> ActivePolicy:
        """The policy in force."""
        return self._active

    def reload(self) -> bool:
        """Read the file again; return whether a new policy took effect.

        Whatever is wrong keeps the policy in force and is told by ``problem``.
        """
        try:
            text = self._path.read_bytes()
            if text == self._text:
                if self.problem is not None and self.problem.startswith("cannot be read"):
                    self.problem = None
                return False
            policy = _parse(text, self._path)
        except OSError as error:
            self._complain(f"cannot be read: {error.strerror or error}")
            return False
        except PolicyError as error:
            self._text = text
            self._complain(str(error))
            return False
        self._text = text
        self.problem = None
        self._active = activate(policy)
        log.info("policy: %s reloaded, generation %d", self._path, policy.generation)
        return True

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            log.error("policy: %s: keeping the last good policy: %s", self._path, problem)

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


def _parse(text: bytes, path: Path) -> Policy:
    return parse_policy(text.decode("utf-8", errors="replace"), str(path))


def activate(policy: Policy) -> ActivePolicy:
    """Build what goes with a policy."""
    version = f"{DETECTOR_VERSION}/{','.join(policy.regions)}"
    return ActivePolicy(policy, PiiScanner(policy.regions), version)
