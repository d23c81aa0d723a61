"""Under load a route may be answered by a smaller model, where its policy says so.

Law: the request is then one for the smaller model from the start: planned, looked up, coalesced
and stored under that name, never under the other's key; and the reply says so.
"""

from collections.abc import Callable
from dataclasses import replace

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.errors import UpstreamError
from gateway.protocol.messages import Reply
from gateway.protocol.reasons import Reason
from gateway.server.request import Asked
from gateway.upstream.request import MODEL, with_model

REFUSED = frozenset({429, 503})
"""Replies by which an upstream says that it has too much to do."""

Overloaded = Callable[[str], bool]
"""Tells whether nobody who serves a model can be asked at once."""


def never_overloaded(_model: str) -> bool:
    """Say no: one upstream alone is always asked."""
    return False


def smaller(
    asked: Asked, overloaded: Overloaded, told: UpstreamError | None = None
) -> Asked | None:
    """Return the request for the smaller model, None where it is to stay as it is.

    ``told`` is how the call for the model asked failed, if it was made.
    """
    small, model = asked.decision.fallback_model, asked.body.get("model")
    # Vectors of another model mean something else.
    if small is None or small == model or asked.local or asked.endpoint is Endpoint.EMBEDDINGS:
        return None
    if asked.odd_body is not None:
        return None
    busy = told is not None and told.reason is Reason.UPSTREAM_BUSY
    if not (busy or overloaded(model or "")) or overloaded(small):
        return None
    body, raw = with_model(asked.body, asked.inbound.raw, small)
    asked.seen.fallback_model = small
    return asked._replace(
        body=body,
        inbound=replace(asked.inbound, raw=raw),
        decision=replace(asked.decision, fallback_model=None),
    )


def named(reply: Reply, asked: Asked) -> Reply:
    """Return the reply with the name of the model that was asked in the other's place."""
    return replace(reply, headers=(*reply.headers, (MODEL, asked.body["model"])))
