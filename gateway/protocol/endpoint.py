"""Values the gateway's decisions are made of.

Pure and immutable: an entry or a request identity is made once and never changed, so it can be
shared by the loop, a store's thread and a test without a lock.
"""

from enum import StrEnum

from policies.plain_enum import plain_members


@plain_members
class Endpoint(StrEnum):
    """Paths whose answers are cached."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
