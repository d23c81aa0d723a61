"""The cached endpoints. A new one needs a member, a file with its record, and a row."""

from collections.abc import Mapping

from gateway.protocol.endpoints import chat, completions, embeddings, rerank, responses
from gateway.protocol.endpoints.spec import EndpointSpec
from policies.decision import Endpoint

SPECS: Mapping[Endpoint, EndpointSpec] = {
    Endpoint.CHAT: chat.SPEC,
    Endpoint.COMPLETIONS: completions.SPEC,
    Endpoint.EMBEDDINGS: embeddings.SPEC,
    Endpoint.RESPONSES: responses.SPEC,
    Endpoint.RERANK: rerank.SPEC,
}
