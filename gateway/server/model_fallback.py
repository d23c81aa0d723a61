"""Under load a route may be answered by the fallback model that its policy names.

Law: the request is then one for the fallback model from the start: planned, looked up, coalesced
and stored under that name, never under the other's key; and the reply says so.
"""

from collections.abc import Callable
from dataclasses import replace

from gateway.prompts.json_splice import with_field
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import Reply
from gateway.server.context import RequestContext
from gateway.upstream.request import MODEL

_REFUSED = frozenset({429, 503})
"""Replies of an overloaded upstream."""

IsOverloaded = Callable[[str, str | None], bool]
"""Tells whether no upstream of a model can take a request of this client at once."""


def never_overloaded(_model: str, _client: str | None) -> bool:
    """Return False: nothing is known of the upstreams."""
    return False


def fallback_for(
    context: RequestContext, overloaded: IsOverloaded, result: Reply | UpstreamError | None
) -> RequestContext | None:
    """Return the request for the fallback model, or None if the request's own model is to answer.

    ``result`` is the result of its call; None before the call.
    """
    request, fallback = context.request, context.decision.fallback_model
    # Vectors and scores of another model mean something else.
    if fallback in (None, request.model) or not SPECS[request.endpoint].generates:
        return None
    if context.forwarding.calls_left <= 0:
        return None
    if request.odd is not None or (isinstance(result, Reply) and result.status not in _REFUSED):
        return None
    busy = isinstance(result, UpstreamError) and result.reason is Reason.UPSTREAM_BUSY
    client = request.holder or context.tenant.credential_sha256
    if not (busy or overloaded(request.model, client)) or overloaded(fallback, client):
        return None
    body, raw = with_field(request.body, request.raw, "model", fallback)
    context.observation.note_fallback(fallback)
    return context._replace(
        request=replace(request, body=body, raw=raw),
        decision=replace(context.decision, fallback_model=None),
    )


def with_model_header(reply: Reply, context: RequestContext) -> Reply:
    """Return the reply with the name of the model that answered in the other's place.

    The load of the requested model decides about the next request.
    """
    headers = (*reply.headers, (MODEL, context.request.model))
    return replace(reply, headers=headers, fresh_until=None)
