"""The byte diff of a rewritten request: put together again it is what was sent."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.json_splice import Edit, splice
from gateway.prompts.rewrite.rules import rewrite
from gateway.protocol.exact_json import parse_body
from gateway.server.admin.explain import CONTEXT, hunks
from policies.decision import Endpoint, PrefixSettings

TEXTS = st.lists(st.sampled_from([b"a", b"bc", b" ", b"\xc3\xa9", b'"', b"{", b"1.5"])).map(
    b"".join
)


@given(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
def test_every_difference_is_told_and_nothing_else(before, went, between, more, came):
    raw = before + went + between + more
    edits = [
        Edit(len(before), len(before + went), came),
        Edit(len(before + went + between), len(raw), went),
    ]
    found = list(hunks(raw, edits))
    assert splice(raw, [Edit(hunk.at, hunk.at + len(hunk.went), hunk.came) for hunk in found]) == (
        splice(raw, edits)
    )
    for hunk in found:
        assert hunk.went != hunk.came
        assert raw[hunk.at :].startswith(hunk.went + hunk.behind)
        assert raw[: hunk.at].endswith(hunk.before)
        assert len(hunk.before) <= CONTEXT


def test_a_very_long_edit_is_told_in_one_piece():
    schema = {"type": "object", "enum": list(range(3000)), "b": 1, "a": list(range(3000, 0, -1))}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    raw = orjson.dumps({"model": "m", "messages": [], "tools": [tool]})
    result = rewrite(Endpoint.CHAT, parse_body(raw), raw, PrefixSettings())
    (only,) = hunks(raw, result.edits)
    assert splice(raw, [Edit(only.at, only.at + len(only.went), only.came)]) == result.raw
