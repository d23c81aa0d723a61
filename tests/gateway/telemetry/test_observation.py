"""What one request has of its calls: each whole call that it paid for counts, and once."""

from observations import observation_of

from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, Reason
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage
from gateway.semantic.ports import Features, SurestCandidate
from gateway.server.keys.key_line import Key
from gateway.server.keys.limits import Budget, Limits
from gateway.server.keys.usage_sync import UsageSync
from gateway.telemetry.observation import CallFacts, CallShare
from gateway.telemetry.savings import account_of_earlier

NOW = 1_800_000_000.0


class Source:
    """The fake at the port of a call: its share, and whether it goes on for its usage."""

    status = ForwardStatus(Forwarded.MISS)

    def __init__(self, share: CallShare, *, goes_on: bool = False) -> None:
        self._share, self._goes_on = share, goes_on
        self.then = None

    def share(self, then=None):
        if then is not None and self._goes_on:
            self.then, self._goes_on = then, False
            return None
        return self._share


def paid(tokens: int) -> CallShare:
    facts = CallFacts(1.0, ended=2.0, usage=PromptUsage(tokens, 0))
    return CallShare(pays=True, usage=facts.usage, whole=facts)


def test_a_call_that_was_paid_for_counts_though_another_takes_its_place():
    seen, first = observation_of(), paid(700)
    seen.follow(Source(first))
    seen.follow(Source(CallShare(pays=True)))
    seen.note_tried((("a", Reason.UPSTREAM_BROKE),))
    seen.finish()
    assert seen.call.earlier == (first.whole,)
    assert (seen.call.usage, seen.call.tried) == (NOTHING_SAID, (("a", Reason.UPSTREAM_BROKE),))


def test_a_call_that_is_final_counts_before_the_next_one():
    seen, first, second = observation_of(), paid(700), paid(5)
    seen.note_call(first)
    seen.follow(Source(second))
    seen.note_call(seen.call_so_far())
    seen.finish()
    assert seen.call == second._replace(earlier=(first.whole,))


def test_a_call_of_which_nothing_counts_leaves_nothing():
    seen, second = observation_of(), paid(5)
    seen.follow(Source(CallShare(pays=True)))
    seen.follow(Source(paid(700)._replace(pays=False)))
    seen.follow(Source(second))
    seen.finish()
    assert seen.call == second


def test_a_refused_call_is_no_call_that_was_paid_for():
    seen = observation_of()
    seen.follow(Source(CallShare(pays=True, whole=CallFacts(1.0, ended=2.0))))
    seen.follow(Source(paid(5)))
    seen.finish()
    assert seen.call.earlier == ()


def test_a_key_is_charged_for_each_call():
    sync, limits = UsageSync(None, lambda: NOW), Limits(budget=(Budget(10_000, "day", "tokens"),))
    key = Key("shop", limits=limits)
    permit = sync.begin(key)
    permit.charge(observation_of(earlier=(paid(700).whole,), usage=PromptUsage(5, 0), pays=True))
    permit.end()
    assert sync.limiter(key).usage.spent(limits.budget[0], NOW) == 705


def test_an_earlier_call_is_a_call_in_the_report_and_no_request():
    seen = observation_of(model="m", holder="ann", rule="default", fallback_model="small")
    found = account_of_earlier(seen, paid(700).whole, None, "only")
    assert (found.labels.model, found.labels.holder, found.labels.upstream) == ("m", "ann", "only")
    assert (found.figures["calls"], found.figures["prompt_tokens"]) == (1, 700)
    assert "requests" not in found.figures


def test_the_sinks_wait_for_the_usage_of_a_call_that_goes_on():
    handed: list[object] = []
    seen, source = observation_of(handed.append), Source(paid(7), goes_on=True)
    seen.follow(source)
    seen.finish(handed.append)
    assert handed == []
    source.then()
    assert handed == [seen, seen]
    assert seen.call.usage.prompt == 7
    seen.finish()
    assert len(handed) == 2


def test_a_client_that_left_is_not_told_as_a_fault_of_the_upstream():
    for reason, expected in ((None, Reason.UPSTREAM_BROKE), (Reason.CLIENT_GONE,) * 2):
        seen = observation_of()
        seen.follow(Source(CallShare(fault=Reason.UPSTREAM_BROKE)))
        seen.end("error", reason)
        seen.finish()
        assert (seen.outcome, seen.reason) == ("error", expected)


def test_the_surest_candidate_is_noted():
    seen = observation_of()
    one, other = Features(0.9, 0.3, 20, 0.5), Features(0.8, 0.6, 20, 0.4)
    candidates = [SurestCandidate(each, 7, 0.75) for each in (one, other, one)]
    seen.note_verified("guard", None)
    for each in candidates:
        seen.note_verified("score", each.features.score, each)
    assert seen.lookup.surest is candidates[1]
    assert len(seen.lookup.verified) == 4
