from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

import orjson
import pytest
from load import Arrival, Client, Outcome, percentile, post, question, run_arrivals, run_load
from servers import free_port, start_upstream
from traffic import Pace, Shares, TracedRequest, Traffic, at_rate


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    with ExitStack() as stack:
        yield start_upstream(stack, core=None)


def stream(**script: str) -> bytes:
    body = orjson.loads(question(stream=True)) | {"metadata": script}
    return post(orjson.dumps(body))


def test_a_closed_loop_sends_each_request_once(upstream: int) -> None:
    replies = []
    result = run_load(upstream, iter([post(question())] * 7), connections=3, report=replies.append)
    assert (result.requests, result.failed) == (7, 0)
    assert all(orjson.loads(each.body)["object"] == "chat.completion" for each in replies)


def test_a_request_that_fails_ends_the_load_unless_it_may(upstream: int) -> None:
    nothing = post(b"{}").replace(b"POST", b"GET ", 1)
    with pytest.raises(SystemExit):
        run_load(upstream, iter([nothing]), connections=1)
    assert run_load(upstream, iter([nothing]), connections=1, may_fail=True).failed == 1


def test_a_stream_is_read_whole_without_its_framing_and_its_events_are_counted(
    upstream: int,
) -> None:
    with Client(upstream) as client:
        reply = client.ask(stream(tokens="5", gap="0.001", id="one"))
    events = reply.body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert sum(count for _, count in reply.pieces) == len(events) - 1 == len(reply.gaps()) + 1
    assert reply.sent < reply.first <= reply.last


def test_one_connection_serves_many_requests_of_both_kinds(upstream: int) -> None:
    with Client(upstream) as client:
        for request in (post(question()), stream(tokens="2"), post(question())):
            assert client.ask(request).status == 200


def test_an_open_loop_reports_replies_clients_that_leave_and_what_takes_too_long(
    upstream: int,
) -> None:
    slow = stream(seconds="30")
    outcomes: list[Outcome] = []
    arrivals = [
        Arrival(0.0, post(question()), "reply"),
        Arrival(0.0, slow, "leaves", leave=0.05),
        Arrival(0.01, slow, "late"),
    ]
    run_arrivals(upstream, arrivals, outcomes.append, patience=0.3)
    assert {each.arrival.label: each.error for each in outcomes} == {
        "reply": "",
        "leaves": "left",
        "late": "TimeoutError",
    }


def test_an_open_loop_reports_a_server_that_is_not_there() -> None:
    outcomes: list[Outcome] = []
    run_arrivals(free_port(), [Arrival(0.0, post(question()))], outcomes.append)
    assert [each.error for each in outcomes] == ["ConnectionRefusedError"]


def test_a_trace_is_stretched_to_a_rate_and_repeated() -> None:
    trace = [TracedRequest(0.0, 1, 1), TracedRequest(3.0, 1, 1)]
    times = [each.at for each in islice(at_rate(trace, 2.0), 6)]
    assert times == sorted(times)
    assert times[2] == pytest.approx(1.0)
    assert times[4] == pytest.approx(2.0)


def test_traffic_repeats_only_what_was_asked_long_enough_before() -> None:
    trace = at_rate([TracedRequest(float(at), 10, 3) for at in range(20)], 10.0)
    traffic = Traffic(Shares(exact=0.4, reworded=0.2, streamed=0.0), Pace(), wait=5.0)
    asked: dict[str, float] = {}
    kinds = []
    for arrival in traffic.arrivals(trace, 60.0):
        kind, name, _ = arrival.label.split()
        kinds.append(kind)
        if kind == "new":
            assert name not in asked
            asked[name] = arrival.at
        else:
            assert asked[name] < arrival.at - 5.0
    assert {"new", "exact", "reworded"} == set(kinds)
    assert 0.3 < kinds.count("exact") / len(kinds) < 0.45


def test_a_percentile_of_nothing_is_no_number() -> None:
    assert percentile([], 0.5) != percentile([], 0.5)
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
