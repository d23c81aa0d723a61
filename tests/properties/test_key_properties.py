"""Isolation: no two differing lists of fields share a scope, a key or a fingerprint."""

from dataclasses import astuple, replace
from typing import Any

from example_requests import SECRET, plan_of
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.cache.key import Partition, identify, scope_id
from gateway.cache.plan import end_user
from gateway.protocol.endpoints.registry import SPECS
from policies.decision import Endpoint, Scope

# Few and short: collisions of concatenated fields are what is looked for.
WORD = st.text("ab,", max_size=3)
NAMES = ["authorization", "api-key", "x-api-key", "openai-organization", "openai-project"]
HEADERS = st.dictionaries(st.sampled_from(NAMES), WORD)
USERS = st.lists(WORD.filter(bool), max_size=2, unique=True).map(tuple)

PARTITIONS = st.builds(
    Partition,
    endpoint=st.sampled_from(Endpoint),
    upstream=WORD,
    query=WORD,
    generation=st.integers(-1, 12),
    scope=st.binary(max_size=3),
    pii_identity=WORD,
)


ASKED = st.tuples(HEADERS, USERS, st.sampled_from(Scope))


@given(ASKED, ASKED)
def test_scopes_are_equal_exactly_if_what_they_stand_for_is(one, other):
    def stands_for(headers: dict[str, str], user: tuple[str, ...], kind: Scope) -> Any:
        if kind is Scope.PUBLIC:
            return kind
        known = {name: value for name, value in headers.items() if value}
        if kind is Scope.TEAM:  # of a request without a team
            kind = Scope.TENANT
        return (kind, known, user if kind is Scope.USER else None)

    def scope(headers: dict[str, str], user: tuple[str, ...], kind: Scope) -> bytes:
        return scope_id(SECRET, kind, identify(headers), user)

    assert (scope(*one) == scope(*other)) == (stands_for(*one) == stands_for(*other))


@given(PARTITIONS, PARTITIONS, st.binary(max_size=3), st.binary(max_size=3))
def test_keys_are_equal_exactly_if_all_fields_are(one, other, form, peer):
    same = astuple(one) == astuple(other) and form == peer
    assert (one.cache_key(form) == other.cache_key(peer)) == same
    assert (one.fingerprint(form) == other.fingerprint(peer)) == same
    assert one.cache_key(form) != other.fingerprint(peer)


@given(PARTITIONS, st.binary(max_size=4), st.binary(max_size=4))
def test_a_byte_cannot_move_between_neighbouring_fields(partition, head, tail):
    assume(head and tail)
    moved = replace(partition, scope=partition.scope + head)
    assert moved.cache_key(tail) != partition.cache_key(head + tail)


FIELDS = st.dictionaries(
    st.sampled_from(["temperature", "seed", "user", "stream", "metadata", "prompt_cache_key", "x"]),
    st.integers(0, 2) | st.sampled_from(["", "a"]),
)


@given(FIELDS, FIELDS, st.sampled_from(["q", "Q", "q "]), st.sampled_from(["q", "Q", "q "]))
def test_requests_share_a_key_exactly_if_only_neutral_fields_differ(one, other, asked, also):
    def plan(fields: dict[str, Any], question: str) -> Any:
        messages = [{"role": "user", "content": question}]
        return plan_of({"model": "m", "messages": messages, **fields})

    neutral = SPECS[Endpoint.CHAT].neutral
    kept = [{k: v for k, v in fields.items() if k not in neutral} for fields in (one, other)]
    plans = plan(one, asked), plan(other, also)
    assert (plans[0].key == plans[1].key) == (kept[0] == kept[1] and asked == also)
    # The question alone is free under the fingerprint.
    assert (plans[0].fingerprint == plans[1].fingerprint) == (kept[0] == kept[1])


@given(st.fixed_dictionaries({}, optional={"user": WORD, "safety_identifier": WORD}))
def test_an_end_user_is_known_by_every_name_that_is_not_empty(body):
    assert set(end_user(Endpoint.CHAT, body)) == {name for name in body.values() if name}
