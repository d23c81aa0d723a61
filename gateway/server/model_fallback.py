"""Under load a route may be answered by the fallback model that its policy names.

Law: the request is then one for the fallback model from the start: planned, looked up, coalesced
and stored under that name, never under the other's key; and the reply says so.
"""

from collections.abc import Callable
from dataclasses import replace

from gateway.protocol.cache_status import Reason
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.messages import Reply
from gateway.server.request import RequestContext
from gateway.upstream.request import MODEL, with_model

_REFUSED = frozenset({429, 503})
"""Replies by which an upstream says that it has too much to do."""

Overloaded = Callable[[str], bool]
"""Tells whether nobody who serves a model can be asked at once."""


def never_overloaded(_model: str) -> bool:
    """Say no: one upstream alone is always asked."""
    return False


def fallback_for(
    asked: RequestContext, overloaded: Overloaded, came: Reply | UpstreamError | None
) -> RequestContext | None:
    """Return the request for the fallback model, None where the model asked is to answer.

    ``came`` is what its call came to, None before it is made.
    """
    model, fallback = asked.body.get("model"), asked.decision.fallback_model
    # Vectors and scores of another model mean something else.
    if fallback is None or fallback == model or not SPECS[asked.endpoint].generates:
        return None
    if asked.odd_body is not None or (isinstance(came, Reply) and came.status not in _REFUSED):
        return None
    busy = isinstance(came, UpstreamError) and came.reason is Reason.UPSTREAM_BUSY
    if not (busy or overloaded(model or "")) or overloaded(fallback):
        return None
    body, raw = with_model(asked.body, asked.inbound.raw, fallback)
    asked.seen.fallback_model = fallback
    return asked._replace(
        body=body,
        inbound=replace(asked.inbound, raw=raw),
        decision=replace(asked.decision, fallback_model=None),
    )


def with_model_header(reply: Reply, asked: RequestContext) -> Reply:
    """Return the reply with the name of the model that answered in the other's place.

    The next request like it may be answered by the other again: how busy that is decides.
    """
    headers = (*reply.headers, (MODEL, asked.body["model"]))
    return replace(reply, headers=headers, fresh_until=None)
