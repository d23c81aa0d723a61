"""Explanations hold for any request, and tell no more than field names and places."""

import asyncio
import json

import orjson
from examples import some
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app import default_policy
from gateway.cache.key import differences, field_digests, nearest
from gateway.cache.stores.memory import MemoryStore
from gateway.cli.offline.explain import explanation_text, pipeline_to_explain
from gateway.server.admin.explain import Explainer
from gateway.server.admin.recorded_request import InvalidFieldError, parse_recorded
from gateway.server.open.policy_file import PolicyFile
from policies.decision import Endpoint

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "role", "content", "x"]), inner)
    ),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "tool", "assistant"])},
        optional={"content": st.text() | st.lists(values, max_size=2) | values},
    )
    | values,
    max_size=30,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "text-embedding-3", ""]) | values,
        "messages": messages,
        "prompt": values,
        "input": values,
        "temperature": values,
        "tools": values,
        "user": values,
        "store": values,
        "other": values,
    },
)
plain = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "tool", "assistant"]), "content": st.text()}
)
parts = st.lists(st.dictionaries(st.sampled_from(["type", "text", "x"]), values), max_size=2)
valid = st.fixed_dictionaries(
    {
        "model": st.just("m"),
        "messages": st.lists(
            plain | st.fixed_dictionaries({"role": st.text(), "content": parts}), min_size=1
        ),
    },
    optional={"tools": st.lists(st.dictionaries(st.text(), values)), "other": values},
)
WORDS = ("MARKER-IN-CONTENT", "MARKER-IN-HEADER")


POLICIES = PolicyFile(default_policy())


def explained(raw, store=None):
    kept = store or MemoryStore(max_bytes=1)
    pipeline = pipeline_to_explain(POLICIES, kept, b"s" * 32, "u", now=lambda: 0.0)
    explainer = Explainer(pipeline, policy_only=store is None)
    return asyncio.run(explainer.explain(parse_recorded(raw)))


@settings(max_examples=some(100))
@given(
    valid | bodies | st.fixed_dictionaries({"body": bodies | values, "headers": values}),
    st.booleans(),
)
def test_any_request_is_explained_or_refused_in_words(asked, with_store):
    raw = json.dumps(asked).encode()
    store = MemoryStore(max_bytes=10**6) if with_store else None
    try:
        told = explained(raw, store)
    except InvalidFieldError as error:
        assert "expected" in str(error)  # noqa: PT017
        return
    assert told["outcome"]["would"] in ("hit", "miss", "bypass", "refused", "invalid", "lookup")
    json.dumps(told)
    assert explanation_text(told, colour=False).splitlines()


@given(st.binary() | st.text(alphabet='{}[]":,body1 ').map(str.encode))
def test_any_bytes_are_an_inquiry_or_told_to_be_none(raw):
    try:
        parse_recorded(raw)
    except InvalidFieldError as error:
        assert "expected" in str(error)  # noqa: PT017


def test_no_text_of_a_request_is_in_its_explanation():
    content, header = WORDS
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"{content} ada@example.com"}],
        "other": [content],
        "user": content,
    }
    asked = {"headers": {"authorization": header, "x-app": header}, "body": body}
    told = explained(orjson.dumps(asked), MemoryStore(max_bytes=10**6))
    assert told["outcome"]["reason"] == "pii"
    for written in (json.dumps(told), explanation_text(told, colour=True)):
        assert not any(word in written for word in WORDS)


@settings(max_examples=some(60))
@given(bodies, bodies, st.sampled_from([*Endpoint]))
def test_digests_are_few_and_differ_where_and_only_where_the_fields_do(one, other, endpoint):
    mine, theirs = (field_digests(b"s", b"scope", endpoint, body) for body in (one, other))
    assert len(mine) < 64
    assert differences(mine, mine) == ()
    same = differences(mine, theirs) == ()
    assert same == (differences(theirs, mine) == ())
    if one == other and repr(one) == repr(other):
        assert same
    if mine:
        assert nearest(mine, [theirs, mine]) == 1
