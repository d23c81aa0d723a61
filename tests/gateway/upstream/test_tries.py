"""The machine of tries: failure in, step out. No upstream, no clock, no chance."""

import pytest

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.tries import (
    ADDITION_REFUSED,
    MOST_CALLS,
    MOST_TRIES,
    NOT_KEPT,
    NOT_SERVED,
    START,
    TABLE,
    Deliver,
    Facts,
    Fail,
    Failure,
    Kind,
    Pays,
    Send,
    Tries,
    Wait,
    Where,
    failure_of,
)

UNREACHABLE = Failure(Kind.UNREACHABLE, Reason.UPSTREAM_UNREACHABLE)
LIMITED = Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED)
FAILED = Failure(Kind.FAILED, Reason.UPSTREAM_STATUS)
BROKE = Failure(Kind.BROKE, Reason.UPSTREAM_BROKE)
STALLED = Failure(Kind.STALLED, Reason.UPSTREAM_TIMEOUT)
REFUSED = Failure(Kind.KEY_REFUSED, Reason.UPSTREAM_REFUSED)
REPLIED = (LIMITED, FAILED, NOT_KEPT, NOT_SERVED, ADDITION_REFUSED)


class Playbook:
    """Plays failures against the machine, and writes down what it says: ``where[ pays]``."""

    def __init__(
        self, *, others: int = 9, paid: bool = True, moved: bool = False, calls=MOST_CALLS
    ):
        self.others, self.paid, self.moved, self.calls = others, paid, moved, calls
        self.step, self.said, self.sends = START, [], 0

    def can_send(self, step: Send) -> bool:
        if step.pays is Pays.RETRY and not self.paid:
            return False
        return step.where is not Where.OTHER or self.others > 0

    def take(self) -> Send | None:
        """Take the next call, if there is one."""
        step = self.step
        while not isinstance(step, Deliver | Fail):
            if isinstance(step, Wait):
                if self.can_send(step.then):
                    self.said.append("wait")
                step = step.then
            elif self.can_send(step):
                self.others -= step.where is Where.OTHER
                self.sends += 1
                plain = " plain" if step.tries.plain else ""
                self.said.append(step.where.name.lower() + plain)
                self.step = step
                return step
            else:
                step = step.otherwise
        self.step = step
        return None

    def fails(self, *failures: Failure | None) -> list[str]:
        """Let the calls fail in this order; None is an answer. Return what was said."""
        for number, failure in enumerate(failures):
            step = self.take()
            if step is None:
                break
            self.calls -= failure is not NOT_KEPT
            name = (
                step.tries.last if step.where is Where.SAME and step.tries.failed else str(number)
            )
            has_reply = failure is None or failure in REPLIED
            added = self.moved or failure is ADDITION_REFUSED
            facts = Facts(self.calls, 0.5, has_reply=has_reply, added=added)
            self.step = step.next(name, failure, facts)
        self.take()
        last = self.step
        end = "fail" if isinstance(last, Fail) else "deliver"
        if isinstance(last, Send):
            return self.said
        return [*self.said, "deliver refusal" if last == Deliver(with_additions=True) else end]


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ([None], ["best", "deliver"]),
        ([LIMITED, None], ["best", "other", "deliver"]),
        ([FAILED, None], ["best", "other", "deliver"]),
        ([FAILED, FAILED], ["best", "other", "deliver"]),
        ([STALLED, STALLED], ["best", "other", "fail"]),
        ([LIMITED, FAILED, LIMITED, FAILED], ["best", "other", "other", "other", "deliver"]),
        ([LIMITED] * MOST_TRIES, ["best", *["other"] * (MOST_TRIES - 1), "deliver"]),
        ([REFUSED] * MOST_TRIES, ["best", *["other"] * (MOST_TRIES - 1), "fail"]),
        ([NOT_KEPT] * 9, ["best", *["other"] * 9]),
        ([NOT_SERVED, None], ["best", "other", "deliver"]),
        ([ADDITION_REFUSED, None], ["best", "same plain", "deliver"]),
        (
            [ADDITION_REFUSED, STALLED, STALLED],
            ["best", "same plain", "other plain", "deliver refusal"],
        ),
        ([ADDITION_REFUSED, ADDITION_REFUSED], ["best", "same plain", "deliver"]),
    ],
)
def test_what_follows(failures, said):
    assert Playbook().fails(*failures) == said


def test_the_same_upstream_gets_it_again_after_pauses_that_grow():
    book = Playbook(others=0)
    assert book.fails(*[UNREACHABLE] * 3) == ["best", "wait", "same", "wait", "same", "fail"]
    step, pauses = START, []
    for _ in range(2):
        step = step.next("a", UNREACHABLE, Facts(jitter=1.0))
        assert isinstance(step, Send)
        wait = step.otherwise
        assert isinstance(wait, Wait)
        pauses.append(wait.seconds)
        step = wait.then
    assert pauses == [0.1, 0.2]


def test_a_risk_is_paid_for_and_what_was_not_processed_is_free():
    assert Playbook(paid=False).fails(FAILED) == ["best", "deliver"]
    assert Playbook(paid=False).fails(BROKE) == ["best", "fail"]
    assert Playbook(paid=False).fails(LIMITED, None) == ["best", "other", "deliver"]
    # It costs no generation: no addition fails a request.
    assert Playbook(paid=False).fails(ADDITION_REFUSED, None) == ["best", "same plain", "deliver"]


def test_values_that_were_moved_go_back_after_a_server_error_if_that_is_paid_for():
    said = ["best", "other", "same plain", "deliver"]
    assert Playbook(moved=True).fails(FAILED, FAILED, None) == said
    assert Playbook(moved=True, others=0).fails(FAILED, None) == ["best", "same plain", "deliver"]
    assert Playbook(moved=True, paid=False).fails(FAILED) == ["best", "deliver"]


def test_what_cannot_be_sent_again_is_not():
    assert START.next("a", LIMITED, Facts(resends=False, has_reply=True)) == Deliver()
    assert START.next("a", BROKE, Facts(risks=False)) == Fail()
    assert isinstance(START.next("a", UNREACHABLE, Facts(risks=False)), Send)
    assert START.next("a", LIMITED, Facts(calls_left=0, has_reply=True)) == Deliver()


@pytest.mark.parametrize("kind", TABLE)
def test_every_failure_ends_however_often_it_comes(kind):
    failure = Failure(kind, Reason.UPSTREAM_STATUS)
    for moved in (False, True):
        book = Playbook(others=20, moved=moved)
        book.fails(*[failure] * 40)
        assert book.sends <= MOST_CALLS


@pytest.mark.parametrize(
    ("reason", "sent", "answered", "head", "kind"),
    [
        (Reason.UPSTREAM_UNREACHABLE, False, False, False, Kind.UNREACHABLE),
        (Reason.UPSTREAM_TIMEOUT, False, False, False, Kind.UNREACHED),
        (Reason.UPSTREAM_TIMEOUT, True, False, False, Kind.STALLED),
        (Reason.UPSTREAM_BROKE, True, False, False, Kind.BROKE),
        (Reason.UPSTREAM_BROKE, True, True, False, Kind.CUT),
        (Reason.UPSTREAM_BROKE, True, False, True, Kind.CUT),
        (Reason.UPSTREAM_REFUSED, True, True, False, Kind.KEY_REFUSED),
    ],
)
def test_what_a_fault_means(reason, sent, answered, head, kind):
    error = UpstreamError(502, "", reason, sent=sent, answered=answered)
    assert failure_of(error, head=head).kind is kind


def test_a_state_is_a_value():
    step = START.next("a", LIMITED, Facts(has_reply=True))
    assert step == Send(
        Where.OTHER, Tries((("a", Reason.UPSTREAM_LIMITED),)), Pays.NOTHING, Deliver()
    )
