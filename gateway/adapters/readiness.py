"""Readiness: encoder warm, engine warm; beside it the state of the policy file."""

from collections.abc import Awaitable, Callable
from typing import Any

Check = Callable[[], Awaitable[str | None]]
"""Returns why a part is not ready yet, or None. Bounded in time; raises nothing."""


class Readiness:
    """Asks every check; ``details`` are shown but do not make the gateway unready."""

    def __init__(self, checks: list[Check], details: Callable[[], dict[str, Any]]) -> None:
        self._checks = checks
        self._details = details

    async def report(self) -> dict[str, Any]:
        """Return ``{"status": "ready" | "starting", "reasons": [...], ...details}``."""
        reasons = [reason for check in self._checks if (reason := await check()) is not None]
        status = "starting" if reasons else "ready"
        return {"status": status, "reasons": reasons, **self._details()}
