"""The cached endpoints. A new one needs a member, a file with its record, and a row."""

from collections.abc import Mapping

from gateway.protocol.endpoints import chat, completions, embeddings, messages, rerank, responses
from gateway.protocol.endpoints.spec import EndpointSpec
from policies.decision import Endpoint

SPECS: Mapping[Endpoint, EndpointSpec] = {
    Endpoint.MESSAGES: messages.SPEC,  # before chat, which takes fewer fields for a sign of itself
    Endpoint.COUNT_TOKENS: messages.COUNT_SPEC,
    Endpoint.CHAT: chat.SPEC,
    Endpoint.COMPLETIONS: completions.SPEC,
    Endpoint.EMBEDDINGS: embeddings.SPEC,
    Endpoint.RESPONSES: responses.SPEC,
    Endpoint.RERANK: rerank.SPEC,
}
