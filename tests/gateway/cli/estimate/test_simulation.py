"""What would have become of requests, by the gateway's own decisions on the log's clock."""

import pytest
from fake_verifier import SaidVerifier

from gateway.cli.offline.estimate.log_formats import read_line
from gateway.cli.offline.estimate.simulation import Simulation, Way, fixed_policy
from gateway.protocol.http.cache_status import Reason
from gateway.semantic.ports import Match

POLICY = """
version: 1
rules:
  - name: mine
    match: {model: mine}
    scope: user
  - name: cool
    match: {model: cool}
    max_temperature: 0.3
  - name: short
    match: {model: short}
    max_prompt_tokens: 3
  - name: patient
    match: {model: patient}
    grace: 10m
  - name: alone
    match: {model: alone}
    coalescing: off
default: {exact: on, semantic: on, freshness: 10m, scope: tenant, pii: bypass}
"""


@pytest.fixture
def policies(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return fixed_policy(file, None)


@pytest.fixture
async def simulation(policies):
    made = Simulation(policies, window=60.0)
    yield made
    await made.close()


def logged(start, text="How do I pay?", *, seconds=1.0, answer="In the shop.", beside=(), **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    message = {"role": "assistant", "content": answer}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    line = {"request": body, "response": {"choices": choices}, "start": start}
    return read_line({**line, "end": start + seconds, **dict(beside)})


async def ways(simulation, *requests):
    return [(await simulation.take(one)).way for one in requests]


async def test_the_same_request_hits_while_it_is_fresh(simulation):
    taken = [await simulation.take(logged(start)) for start in (0, 10, 590, 700, 710)]
    assert [one.way for one in taken] == [Way.MISS, Way.EXACT, Way.EXACT, Way.MISS, Way.EXACT]
    assert [one.seconds for one in taken] == [0, 1, 1, 0, 1]
    assert [one.saves_call for one in taken] == [False, True, True, False, True]
    assert len({one.key for one in taken}) == 1
    assert {one.rule for one in taken} == {"default"}


async def test_a_tenant_never_hits_what_another_one_stored(simulation):
    ours, theirs = {"tenant": "ours"}, {"tenant": "theirs"}
    requests = [logged(n * 10, beside=whose) for n, whose in enumerate((ours, theirs, ours))]
    assert await ways(simulation, *requests) == [Way.MISS, Way.MISS, Way.EXACT]


async def test_users_that_the_body_does_not_name_are_kept_apart_where_the_policy_wants_it(
    simulation,
):
    def asked(number, user):
        body = {"model": "mine", "messages": [{"role": "user", "content": "How do I pay?"}]}
        at = f"2026-03-02T12:00:{number:02}Z"
        line = {"request_body": body, "request_created_at": at, "request_user_id": user}
        return read_line(line)

    requests = [asked(n, user) for n, user in enumerate(("kim", "lee", "kim", None))]
    taken = [await simulation.take(one) for one in requests]
    assert [one.way for one in taken] == [Way.MISS, Way.MISS, Way.EXACT, Way.BYPASS]
    assert taken[-1].reason is Reason.NO_USER


async def test_identical_requests_that_overlap_make_one_call(simulation):
    first, second, third = logged(0, seconds=5), logged(2, seconds=6), logged(4, seconds=0.5)
    taken = [await simulation.take(one) for one in (first, second, third, logged(20))]
    assert [one.way for one in taken] == [Way.MISS, Way.COALESCED, Way.COALESCED, Way.EXACT]
    assert [one.seconds for one in taken] == [0, 3, 0, 1]
    assert all(one.repeated == 0 for one in taken[1:])


async def test_where_coalescing_is_off_each_makes_a_call(simulation):
    requests = [logged(start, seconds=5, model="alone") for start in (0, 2)]
    assert await ways(simulation, *requests) == [Way.MISS, Way.MISS]


async def test_a_failed_answer_is_neither_shared_nor_stored(simulation):
    failed = {"response": {"status_code": 500, "body": {"error": {}}}}
    requests = [logged(0, seconds=5, beside=failed), logged(2, seconds=1), logged(10)]
    assert await ways(simulation, *requests) == [Way.MISS, Way.MISS, Way.EXACT]


async def test_an_answer_that_the_gateway_would_not_store_is_counted(simulation):
    requests = [
        logged(0, answer="Write to kim.smith@gmail.com."),
        logged(10),
        logged(20, "And who?", answer=""),
    ]
    assert await ways(simulation, *requests) == [Way.MISS, Way.MISS, Way.MISS]
    await simulation.finish()
    assert simulation.not_stored == {Reason.PII: 1, Reason.EMPTY: 1}


async def test_an_answer_that_the_log_lacks_counts_as_stored(simulation):
    body = {"model": "m", "messages": [{"role": "user", "content": "How do I pay?"}]}
    assert await ways(simulation, *[read_line(body)] * 3) == [Way.MISS, Way.EXACT, Way.EXACT]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"store": True}, Reason.STORE_TRUE),
        ({"text": "Write to kim.smith@gmail.com"}, Reason.PII),
        ({"model": "cool", "temperature": 1}, Reason.TEMPERATURE),
        ({"model": "short"}, Reason.PROMPT_TOO_LONG),
        ({"messages": []}, Reason.INVALID_REQUEST),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, Reason.UNKNOWN_SHAPE),
    ],
)
async def test_what_is_not_looked_up_has_the_gateways_own_reason(simulation, fields, reason):
    taken = [await simulation.take(logged(start, **fields)) for start in (0, 10)]
    assert [(one.way, one.reason) for one in taken] == [(Way.BYPASS, reason)] * 2


async def test_headers_of_the_log_count(simulation):
    fresh = {"headers": {"Cache-Control": "no-cache"}}
    requests = [logged(0), logged(10, beside=fresh), logged(20)]
    assert await ways(simulation, *requests) == [Way.MISS, Way.MISS, Way.EXACT]


async def test_a_stale_hit_saves_the_waiting_and_no_call(simulation):
    taken = [await simulation.take(logged(start, model="patient")) for start in (0, 700, 710)]
    assert [one.way for one in taken] == [Way.MISS, Way.EXACT, Way.EXACT]
    assert [one.saves_call for one in taken] == [False, False, True]
    assert taken[1].seconds == 1


async def test_the_items_of_a_batch_are_entries_of_their_own(simulation):
    def embedded(start, *texts):
        data = [
            {"object": "embedding", "index": n, "embedding": [0.5]} for n, _ in enumerate(texts)
        ]
        answer = {"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": 2}}
        body = {"model": "e", "input": list(texts)}
        line = {"endpoint": "/v1/embeddings", "request": body, "response": answer}
        return read_line({**line, "start": start, "end": start + 1})

    requests = [embedded(0, "a", "b"), embedded(10, "b", "a"), embedded(20, "b"), embedded(30, "c")]
    assert await ways(simulation, *requests) == [Way.MISS, Way.EXACT, Way.EXACT, Way.MISS]


async def test_a_prompt_that_begins_like_an_earlier_one_is_found_within_the_window(simulation):
    long = "You help the customers of Acme. " * 100
    requests = [logged(start, f"{long}{start}") for start in (0, 30, 200)]
    shares = [(await simulation.take(one)).repeated for one in requests]
    assert shares[0] == shares[2] == 0
    assert 0.8 < shares[1] <= 1


async def test_a_log_that_goes_back_in_time_does_not_turn_back_the_clock(simulation):
    requests = [logged(100), logged(50), logged(200)]
    assert await ways(simulation, *requests) == [Way.MISS, Way.COALESCED, Way.EXACT]


class Questions:
    """An index in which all questions of a partition are near."""

    def __init__(self):
        self.keys = {}

    async def search(self, partition, _text, k):
        near = [key for key, place in self.keys.items() if place == partition]
        return [Match(key, 0.95) for key in near][:k]

    async def add(self, partition, key, _text, expires_at):
        assert expires_at > 1e9  # of today's clock
        self.keys[key] = partition

    async def remove(self, keys):
        for key in keys:
            self.keys.pop(key, None)


async def test_a_question_of_the_same_meaning_hits_by_meaning_until_it_is_stale(policies):
    index = Questions()
    simulation = Simulation(policies, window=60.0, index=index, verifier=SaidVerifier())
    other = "How can I pay?"
    requests = [logged(0), logged(10, other), logged(20, model="n"), logged(700, other)]
    assert await ways(simulation, *requests) == [Way.MISS, Way.SEMANTIC, Way.MISS, Way.MISS]
    assert index.keys == {}  # what is stale is gone, and the latest answer is under way
    await simulation.close()


async def test_why_a_question_is_not_eligible_is_told(policies):
    simulation = Simulation(policies, window=60.0, index=Questions(), verifier=SaidVerifier())
    taken = await simulation.take(logged(0, "What time is it now?"))
    assert (taken.way, taken.ineligible) == (Way.MISS, Reason.TIME)
    await simulation.close()


def test_a_risk_takes_the_place_of_every_budget(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    for risk, budget in ((0.05, 0.05), (None, 0.005)):
        decisions = fixed_policy(file, risk).active.policy.decisions
        assert {each.max_wrong_hits for each in decisions} == {budget}
