"""The endpoints whose answers are cached: a policy matches requests by their paths."""

from enum import StrEnum

from policies.plain_enum import plain_members


@plain_members
class Endpoint(StrEnum):
    """Path of a cached endpoint; it is part of every cache key."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    RERANK = "/v1/rerank"
