"""A pool under any history of calls, failures, pauses and probes keeps its limits and its books."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool.health import LONGEST_EJECTION, Open, State, Trial
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import Call, Change, PoolTable
from gateway.upstream.pool.upstream_state import Member, NoRoom
from gateway.upstream.pool.waiting_queue import Ticket, Waiting
from gateway.upstream.request import Outgoing
from gateway.upstream.tries import Failure, Kind

MEMBERS = (
    Member("a", ("x",), max_concurrency=2),
    Member("b", ("x", "y"), requests_per_minute=3),
    Member("c", ("y",), tier=2, max_concurrency=1, requests_per_minute=4),
)
FAILURES = (
    Failure(Kind.BROKE, Reason.UPSTREAM_BROKE),
    Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED, retry_after=3.0),
    Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED),
)
STEPS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 7.0, 40.0])),
    st.tuples(st.just("begin"), st.sampled_from(["x", "y"]), st.sampled_from([None, "ann", "bob"])),
    st.tuples(st.just("answer"), st.integers(0, 5)),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("fail"), st.integers(0, 5), st.sampled_from(FAILURES)),
    st.tuples(st.just("probe"), st.sampled_from("abc"), st.booleans()),
)


class Books:
    """A table, and what is known of it without looking into it."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.table = PoolTable(MEMBERS, LeastLoaded(), 0.0, self.changes.append)
        self.now = 0.0
        self.calls: list[Call] = []
        self.sent: dict[str, list[float]] = {member.name: [] for member in MEMBERS}

    def wait(self, seconds):
        self.now += seconds

    def begin(self, model, client):
        upstreams = self.table.upstreams.items()
        paused = {name for name, one in upstreams if one.health.paused_until > self.now}
        outgoing = Outgoing("/v1/chat/completions", (), b"", model, client=client)
        got = self.table.acquire(outgoing, self.now)
        if isinstance(got, NoRoom):
            assert got.at is None or got.at >= self.now
            assert self.table.overloaded(model, client, self.now)
            return
        assert got.upstream.member.serves(model)
        health = got.upstream.health_for(client, self.now)
        assert got.name not in paused or isinstance(health.breaker, Open | Trial)
        self.calls.append(got)
        self.sent[got.name].append(self.now)

    def answer(self, place):
        if self.calls:
            self.table.first_byte(self.calls[place % len(self.calls)], self.now)

    def end(self, place):
        if self.calls:
            self.table.release(self.calls.pop(place % len(self.calls)))

    def fail(self, place, failure):
        if self.calls:
            self.table.record_failure(self.calls[place % len(self.calls)], failure, self.now)
            self.end(place)

    def probe(self, name, good):
        fault = None if good else Reason.UPSTREAM_TIMEOUT
        self.table.record_probe(name, fault, self.now, for_sure=False)

    def check(self, member):
        upstream = self.table.upstreams[member.name]
        own = [call for call in self.calls if call.name == member.name]
        assert upstream.in_flight == len(own) <= (member.max_concurrency or len(own))
        assert upstream.trial_under_way == sum(call.trial for call in own)
        if isinstance(upstream.health.breaker, Open):
            assert upstream.health.breaker.until <= self.now + LONGEST_EJECTION
        in_a_minute = [at for at in self.sent[member.name] if at > self.now - 60.0]
        assert len(in_a_minute) <= (member.requests_per_minute or len(in_a_minute))


@given(st.lists(STEPS, max_size=60))
def test_limits_are_kept_and_books_balance(steps):
    books = Books()
    for name, *values in steps:
        getattr(books, name)(*values)
        for member in MEMBERS:
            books.check(member)
    for change in books.changes:
        assert change.before is not change.after
        assert (change.why is None) == (change.after is State.UP)


class Line:
    """A queue before one place, and who was let in while each client waited."""

    def __init__(self) -> None:
        self.table = PoolTable([Member("m", max_concurrency=1)], LeastLoaded(), 0.0)
        self.waiting: Waiting[int] = Waiting(6)
        self.held: Call | None = None
        self.came = 0
        self.tickets: dict[int, Ticket[int]] = {}
        self.passed_by: dict[str, list[str]] = {}
        self.come("z")
        self.end(0)

    def come(self, client):
        newcomer = Outgoing("/v1/chat/completions", (), b"", f"model-of-{client}", client=client)
        if self.waiting.full and (last := self.waiting.ticket_to_displace(newcomer)) is not None:
            self.leave(last)
        if not self.waiting.full:
            self.came += 1
            self.tickets[self.came] = self.waiting.add(newcomer, self.came)
            self.passed_by.setdefault(client, [])

    def go(self, place):
        if self.tickets:
            self.leave(list(self.tickets.values())[place % len(self.tickets)])

    def leave(self, ticket):
        self.waiting.remove(ticket)
        del self.tickets[ticket.number]
        if not self.numbers_of(ticket.outgoing.client):
            del self.passed_by[ticket.outgoing.client]

    def end(self, _):
        if self.held is not None:
            self.table.release(self.held)
        begun, _ = self.waiting.admit(self.table, 0.0)
        self.held = None
        assert len(begun) == min(1, len(self.tickets))
        for number, self.held in begun:
            client = self.tickets[number].outgoing.client
            assert number == min(self.numbers_of(client))
            for other, passing in self.passed_by.items():
                assert other == client or client not in passing
                passing.append(client)
            self.passed_by[client] = []
            self.leave(self.tickets[number])

    def numbers_of(self, client):
        return [number for number, one in self.tickets.items() if one.outgoing.client == client]


IN_LINE = st.one_of(
    st.tuples(st.just("come"), st.sampled_from("abc")),
    st.tuples(st.just("end"), st.just(0)),
    st.tuples(st.just("go"), st.integers(0, 5)),
)


@settings(max_examples=60)
@given(st.lists(IN_LINE, max_size=30))
def test_nobody_is_let_in_twice_while_another_client_waits_and_no_place_is_lost(steps):
    line = Line()
    for name, value in steps:
        getattr(line, name)(value)
        assert len(line.waiting) == len(line.tickets) <= 6
