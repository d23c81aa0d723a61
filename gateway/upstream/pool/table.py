"""Which upstream of a pool a request goes to, and what is known of each.

Laws:
- It goes to one that serves the model, in the lowest tier in which one has room; among those the
  routing decides.
- What was begun is ended once, and counts as under way until then.
- Where all are left alone because they fail, one call at a time tries the next of them all the
  same: the last upstream is never shut out.
- Who waits for room goes in the order of coming, model by model.

The table does no I/O; ``now`` is a reading of one clock that never goes back.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from gateway.protocol.reasons import Reason
from gateway.upstream.pool import health as healths
from gateway.upstream.pool.health import Open, State, Trial, Up
from gateway.upstream.pool.retry import Failure
from gateway.upstream.pool.upstream_state import (
    SOON,
    Member,
    NoRoom,
    Standing,
    new,
    no_room,
    serving,
)
from gateway.upstream.request import LONGEST_MODEL, MOST_MODELS, Outgoing
from gateway.upstream.routing.routing import Choice, Load, Route, Routing, Sent, Wait

NOBODY: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Call:
    """One request under way to one upstream."""

    standing: Standing
    sent: Sent = field(repr=False)
    trial: bool
    route: Route = Route.RETRY
    ended: bool = False

    @property
    def name(self) -> str:
        """The upstream's name."""
        return self.standing.member.name


@dataclass(frozen=True, slots=True)
class Change:
    """An upstream came into another state."""

    name: str
    before: State
    after: State
    why: Reason | None
    seconds: float
    """How long it is left alone."""


class PoolTable:
    """The one owner of what is known of a pool's upstreams."""

    def __init__(
        self,
        members: Sequence[Member],
        routing: Routing,
        now: float,
        changed: Callable[[Change], None] = lambda _change: None,
    ) -> None:
        self._routing = routing
        self._changed = changed
        self._members = tuple(members)
        self.standings = {member.name: new(member, now) for member in members}
        self._serving: dict[str, tuple[tuple[Standing, ...], ...]] = {}

    def begin(
        self, outgoing: Outgoing, now: float, tried: AbstractSet[str] = NOBODY
    ) -> Call | NoRoom:
        """Begin a call to the best of those that were not tried, or tell why there is none."""
        tiers = self._tiers_for(outgoing)
        for tier in tiers:
            able = [one for one in tier if one.member.name not in tried and one.is_able(now)]
            if able:
                best = self._best(able, outgoing, now)
                return self._begun(self.standings[best.name], outgoing, now, best.why)
        left = [one for tier in tiers for one in tier if one.member.name not in tried]
        shut = [one for one in left if isinstance(one.health.at, Open | Trial)]
        if shut and len(shut) == len(left):
            free = [one for one in shut if not one.tried and one.has_room(now)]
            if free:
                last = min(free, key=lambda one: one.health.back_at(now))
                return self._begun(last, outgoing, now)
        return no_room(left, now)

    def again(self, name: str, outgoing: Outgoing, now: float) -> Call | None:
        """Begin a call to the same upstream once more, if it is there and has room."""
        standing = self.standings[name]
        if not (standing.is_able(now) or (not standing.tried and standing.has_room(now))):
            return None
        return self._begun(standing, outgoing, now)

    def overloaded(self, model: str, now: float) -> bool:
        """Tell whether nobody who serves the model can be asked at once."""
        return not any(one.is_able(now) for tier in self._tiers(model) for one in tier)

    def resting_until(self, outgoing: Outgoing, now: float) -> float | None:
        """Return when the first that rests may be asked again; None where none does."""
        times = [
            one.health.rests_until
            for tier in self._tiers_for(outgoing)
            for one in tier
            if one.health.rests_until > now
        ]
        return min(times, default=None)

    def unasked(self, outgoing: Outgoing, asked: AbstractSet[str]) -> bool:
        """Tell whether one that serves the model was not asked."""
        tiers = self._tiers_for(outgoing)
        return any(one.member.name not in asked for tier in tiers for one in tier)

    def held_back(self, call: Call, now: float) -> Wait | None:
        """Tell whether the request is to wait for another that computes what it begins with."""
        return self._routing.held_back(call.sent, now)

    def note_cached(self, call: Call, tokens: int, now: float) -> None:
        """Note how much of the prompt the upstream says that it had."""
        self._routing.answered(call.sent, tokens, now)

    def first_byte(self, call: Call, now: float, *, refused: bool = False) -> None:
        """Note that the upstream has answered; a prompt that it ``refused`` it has not computed."""
        call.standing.heard_at = now
        if refused:
            self._routing.ended(call.sent, now)
        else:
            self._routing.first_token(call.sent, now)
        health = healths.answered(call.standing.health, now)
        if health is not call.standing.health:  # seldom
            with self._watched(call.standing, now):
                call.standing.health = health
        self._end_trial(call)

    def failed(self, call: Call, failure: Failure, now: float) -> None:
        """Note that it has not, or broke off."""
        standing = call.standing
        with self._watched(standing, now):
            if failure.personal:
                standing.heard_at = now
            elif failure.refused is not None:
                standing.health = healths.asked_for_rest(
                    standing.health, failure.rest, failure.reason, now
                )
            else:
                standing.health = healths.call_failed(standing.health, failure.reason, now)
        self._end_trial(call)

    def end(self, call: Call, now: float) -> None:
        """Note that a call is over, however it ended. A second time changes nothing."""
        if call.ended:
            return
        call.ended = True
        call.standing.in_flight -= 1
        self._end_trial(call)
        self._routing.ended(call.sent, now)

    def probed(self, name: str, fault: Reason | None, now: float, *, for_sure: bool) -> None:
        """Note what a probe told."""
        standing = self.standings[name]
        standing.probed_at = now
        if fault is None:
            standing.heard_at = now
        with self._watched(standing, now):
            standing.health = healths.probed(standing.health, fault, now, for_sure=for_sure)

    def probe_at(self, name: str, every: float) -> float:
        """Return when to probe it: when its pause is over, or if it is not heard of for long."""
        standing = self.standings[name]
        match standing.health.at:
            case Open(until=until):
                return until
            case Up(probes_failed=failed) if failed:
                return standing.probed_at + SOON
            case _:
                return max(standing.heard_at, standing.probed_at) + every

    def is_left_alone(self, name: str) -> bool:
        """Tell whether it fails, and nobody is to ask it."""
        return isinstance(self.standings[name].health.at, Open)

    def left_alone_since(self, call: Call) -> Reason | None:
        """Return why, if its upstream has come to be left alone since the call was begun."""
        health = call.standing.health
        return health.at.why if isinstance(health.at, Open) and not call.trial else None

    def can_be_spared(self, name: str, model: str, now: float) -> bool:
        """Tell whether it serves the model, has room, and another could be asked in its place."""
        serve = {one.member.name: one for tier in self._tiers(model) for one in tier}
        spared = serve.pop(name, None)
        if spared is None or not spared.has_room(now):
            return False
        return any(one.is_able(now) for one in serve.values())

    def count(self, name: str, now: float) -> None:
        """Count a request of the gateway's own against an upstream's rate."""
        if (rate := self.standings[name].rate) is not None:
            rate.take(now)

    def computed(self, name: str, prefix: Sequence[int], now: float) -> None:
        """Note that an upstream has computed a prompt that no client sent."""
        sent = self._routing.sent(name, prefix, now)
        self._routing.first_token(sent, now)
        self._routing.ended(sent, now)

    def first_available(self, model: str | None, now: float) -> list[str]:
        """Return all names in the order in which requests of no known kind go there.

        That of the declaration, those that are well first: what an upstream keeps for its clients
        (files, batches) is found again where it was put.
        """
        serves = [one for tier in self._tiers(model) for one in tier] if model else None
        ordered = serves or list(self.standings.values())
        return [one.member.name for one in sorted(ordered, key=lambda one: one.unwell(now))]

    def _tiers_for(self, outgoing: Outgoing) -> tuple[tuple[Standing, ...], ...]:
        if outgoing.at:
            return ((self.standings[outgoing.at],),)
        return self._tiers(outgoing.model)

    def _tiers(self, model: str) -> tuple[tuple[Standing, ...], ...]:
        tiers = self._serving.get(model)
        if tiers is None:
            members = serving(self._members, model)
            tiers = tuple(
                tuple(self.standings[member.name] for member in members if member.tier == tier)
                for tier in sorted({member.tier for member in members})
            )
            if len(model) <= LONGEST_MODEL:
                if len(self._serving) >= MOST_MODELS:
                    self._serving.clear()
                self._serving[model] = tiers
        return tiers

    def _best(self, able: list[Standing], outgoing: Outgoing, now: float) -> Choice:
        loads = [Load(one.member.name, one.in_flight, weight=one.member.weight) for one in able]
        return self._routing.order(outgoing.prefix, loads, now)[0]

    def _begun(
        self, standing: Standing, outgoing: Outgoing, now: float, route: Route = Route.RETRY
    ) -> Call:
        standing.in_flight += 1
        if standing.rate is not None:
            standing.rate.take(now)
        trial = not isinstance(standing.health.at, Up)
        standing.tried = standing.tried or trial
        sent = self._routing.sent(standing.member.name, outgoing.prefix, now)
        sent.rank, sent.streamed = outgoing.rank, outgoing.streamed
        return Call(standing, sent, trial, route)

    def _end_trial(self, call: Call) -> None:
        if call.trial:
            call.trial = call.standing.tried = False

    def _watched(self, standing: Standing, now: float) -> "_Watched":
        return _Watched(self, standing, now)

    def tell(self, standing: Standing, before: State, now: float) -> None:
        """Tell of a change of state, and let the routing forget whose cache may be gone."""
        health, name = standing.health, standing.member.name
        after = health.state(now)
        if after is before:
            return
        if after is State.OPEN and before is not State.TRIAL:
            self._routing.forget(name)
        seconds = max(0.0, health.back_at(now) - now)
        self._changed(Change(name, before, after, health.why(now), seconds))


class _Watched:
    """Tells of a change of state that happened inside."""

    __slots__ = ("_before", "_now", "_standing", "_table")

    def __init__(self, table: PoolTable, standing: Standing, now: float) -> None:
        self._table, self._standing, self._now = table, standing, now
        self._before = standing.health.state(now)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._table.tell(self._standing, self._before, self._now)


def states(table: PoolTable, now: float) -> Iterator[tuple[Standing, State, float]]:
    """Yield each upstream, its state, and for how many seconds it is left alone."""
    for standing in table.standings.values():
        health = standing.health
        yield standing, health.state(now), max(0.0, health.back_at(now) - now)
