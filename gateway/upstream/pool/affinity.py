"""Which upstream keeps what clients name by an id: responses, conversations, files, batches.

Law: what is kept at one upstream is answered there or nowhere; nobody stands in for it. Who keeps
it is not told by the id, so it is learnt: from who made it, and from who knew it when all were
asked. The memory is bounded; what is forgotten is asked for again.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.reasons import Reason
from gateway.upstream.pool.retry import Failure

MOST_KNOWN = 65_536
LONGEST_ID = 256
_REFUSALS = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""What is said of an id that is not known, or of the field where nothing is ever kept."""
_PATH = re.compile(
    "/v1/(?:responses|conversations|files|uploads|batches|vector_stores|containers"
    "|chat/completions|fine_tuning/jobs)/([^/?]+)"
)
NOT_KEPT = Failure(Reason.NOT_KEPT, risky=False, personal=True)
"""Another is to be asked; it says nothing of the health of who was."""


class Kept:
    """Ids and upstreams; those that were not named for longest are forgotten first."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._known: dict[str, str] = {}
        self._most = most

    def at(self, named: str) -> str:
        """Return who keeps it, nothing where that is not known."""
        name = self._known.pop(named, "")
        if name:
            self._known[named] = name
        return name

    def note(self, named: str, upstream: str) -> None:
        """Note who keeps it."""
        if not 0 < len(named) <= LONGEST_ID:
            return
        self._known.pop(named, None)
        self._known[named] = upstream
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]


def named_in(endpoint: Endpoint, body: Mapping[str, Any]) -> str:
    """Return the id of the response or conversation that a request goes on with, if any."""
    if endpoint is not Endpoint.RESPONSES:
        return ""
    for value in (body.get("previous_response_id"), body.get("conversation")):
        match value:
            case str(named) | {"id": str(named)} if named:
                return named
    return ""


def named_by(path_qs: str) -> str:
    """Return the id in a path such as ``/v1/files/ID/content``, if any."""
    found = _PATH.match(path_qs)
    return "" if found is None else found[1]


def may_be_elsewhere(status: int) -> bool:
    """Tell whether a request that names an id may have been refused because it is not known."""
    return status in _REFUSALS
