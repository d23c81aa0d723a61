"""Words of other caches, with the key or value of this format that means the same. Pure.

They are only suggested: a file that has one of them is refused.
"""

from collections.abc import Mapping
from typing import Final

_KEYS: Final = """
    freshness: ttl ttl_seconds ttl_s ttl_sec time_to_live max_age maxage s_maxage lifetime fresh_for
        expire expires expire_after expires_in expiry expiration cache_ttl duration keep
    exact: cache caching cached enable enabled active mode cache_mode type exact_match
    semantic: semantic_cache similar fuzzy embedding embeddings vector
    semantic.min_similarity: threshold similarity similarity_threshold semantic_threshold score
        score_threshold min_score cosine distance distance_threshold
    semantic.max_wrong_hits: error_budget max_wrong wrong_hits false_hits max_error
    scope: namespace isolation partition sharing shared visibility per_user key_by vary
    grace: stale max_stale
    grace.while_revalidate: stale_while_revalidate swr
    grace.if_error: stale_if_error sie
    coalescing: coalesce dedup dedupe deduplicate single_flight singleflight collapse
    pii: privacy redact redaction dlp pii_mode sensitive
    match.model: model models
    match.endpoint: endpoint endpoints path paths route routes url
    match.header: header headers
    match.tenant: tenant_name tenant_id
    match.content.keywords: keyword contains
    match: when if condition conditions selector where filter
    max_temperature: temperature temp
    max_prompt_tokens: max_tokens max_input_tokens max_length
    fallback_model: fallback fallbacks
    prefix: rewrite rewrites normalize
    compress: compression
    tags: tag labels
"""
KEYS: Final[Mapping[str, str]] = {
    word: key.strip()
    for line in _KEYS.replace("\n        ", " ").splitlines()
    if line.strip()
    for key, _, words in [line.partition(":")]
    for word in words.split()
}
"""From another word to the path of the key in a rule."""

PII: Final[Mapping[str, str]] = {
    **dict.fromkeys(("off", "none", "disable", "disabled", "ignore", "skip", "never"), "allow"),
    **dict.fromkeys(("on", "redact", "mask", "block", "deny", "refuse", "strict"), "bypass"),
}
SCOPE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("global", "all", "shared", "everyone", "everybody", "any"), "public"),
    **dict.fromkeys(("key", "api_key", "org", "organization", "account", "client"), "tenant"),
    **dict.fromkeys(("session", "end_user", "end-user", "private", "per_user"), "user"),
    **dict.fromkeys(("group", "teams"), "team"),
}
