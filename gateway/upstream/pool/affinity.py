"""Which upstream keeps what clients name by an id: responses, conversations, files, batches.

Law: what is kept at one upstream is answered there or nowhere; no other stands in for it. The id
does not tell which upstream that is. It is learnt: from the one that made it, and from the one that
knew it when all were asked. The memory is bounded; what is forgotten is asked for again.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from cachetools import LRUCache

from gateway.protocol.cache_status import Reason
from gateway.protocol.endpoints.table import SPECS
from gateway.upstream.pool.retry import Failure
from policies.endpoint import Endpoint

MOST_KNOWN = 65_536
LONGEST_ID = 256
_REFUSALS = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""The statuses for an id that is not known, or for the field on a server that keeps nothing."""
_PATH = re.compile(
    "/v1/(?:responses|conversations|files|uploads|batches|vector_stores|containers"
    "|chat/completions|fine_tuning/jobs)/([^/?]+)"
)
NOT_KEPT = Failure(Reason.NOT_KEPT, risky=False, personal=True)
"""Another upstream is asked; this says nothing of the health of the first."""


class StickyIds:
    """The upstream of each id; the ids not named for longest are forgotten first."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._known: LRUCache[str, str] = LRUCache(most)

    def at(self, named: str) -> str:
        """Return the upstream that keeps it, empty if that is not known."""
        return self._known.get(named, "")

    def note(self, named: str, upstream: str) -> None:
        """Note which upstream keeps it."""
        if 0 < len(named) <= LONGEST_ID:
            self._known[named] = upstream


def previous_response_id_of(endpoint: Endpoint, body: Mapping[str, Any]) -> str:
    """Return the id of the response or conversation that a request continues, if any."""
    if not SPECS[endpoint].keeps_by_id:
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
