"""The cached endpoints and their records. A new endpoint is a member, a file and a row here."""

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
