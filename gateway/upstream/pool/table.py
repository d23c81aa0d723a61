"""The choice of an upstream in a pool, and the state of each upstream.

Laws:
- A request goes to an upstream of its model, in the lowest tier with room; within the tier the
  routing decides.
- A call that was acquired is released once, and counts as under way until then.
- If all are ejected, one call at a time still tries the next of them. A lone upstream gets every
  call, whatever its state: to refuse some would help nobody.
- An upstream that leaves gets no new request, except for what it alone stores. It is dropped once
  no call is under way there.
- A prefill member gets no client's request. A request to a decode member is a call there, too, from
  its beginning to the first byte; without a prefill member that is up, the decode member is alone.

The table does no I/O; ``now`` is a reading of one clock that never goes back.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import compress

from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import declared_name
from gateway.upstream.pool import health as healths
from gateway.upstream.pool.health import Health, Open, State, Trouble, Up
from gateway.upstream.pool.routing import Dispatch, LeastLoaded, Route
from gateway.upstream.pool.upstream_state import (
    DECODE,
    PREFILL,
    SOON,
    Member,
    NoRoom,
    UpstreamState,
    loads,
    new_state,
    no_room,
)
from gateway.upstream.pool.watch.engine_load import EngineLoad, LoadSignal
from gateway.upstream.request import LONGEST_MODEL, MOST_MODELS, Outgoing
from gateway.upstream.tries import Failure

MOST_LISTED = 100
"""Models in the refusal of an unknown one."""

LACK_SECONDS = 60.0
"""For how long an upstream counts as one without a model that it did not have."""

_WORSE = (State.UP, State.PAUSED, State.TRIAL, State.OPEN)


@dataclass(eq=False, slots=True)
class Call:
    """One request under way to one upstream."""

    upstream: UpstreamState
    dispatch: Dispatch = field(repr=False)
    trial: bool
    route: Route = Route.RETRY
    client: str | None = field(default=None, repr=False)
    trouble: Trouble | None = field(default=None, repr=False)
    """The client's own trouble that this call decides about."""
    ended: bool = False
    prefill: "Call | None" = None
    """The part of a prefill member, until the first byte of the answer."""
    name: str = field(init=False)
    """The upstream's name."""

    def __post_init__(self) -> None:
        self.name = self.upstream.member.name


@dataclass(frozen=True, slots=True)
class Change:
    """The state of an upstream changed."""

    name: str
    before: State
    after: State
    why: Reason | None
    seconds: float
    """The time for which it stays open or paused."""


class PoolTable:
    """The one owner of what is known of a pool's upstreams."""

    def __init__(
        self,
        members: Sequence[Member],
        routing: LeastLoaded,
        now: float,
        changed: Callable[[Change], None] = lambda _change: None,
        discovered: Sequence[Member] = (),
        *,
        is_lone: bool = False,
    ) -> None:
        """``discovered`` stands for upstreams whose replicas join and leave.

        ``is_lone`` says that the only upstream is given by its URL alone.
        """
        self.routing = routing
        self._follows = routing.follows
        self._is_lone = is_lone
        self.unlisted: Callable[[str], None] = lambda _model: None
        """Called with a model that no list has, or that an upstream lacks."""
        self._changed = changed
        self._discovered = discovered
        self._declared = [one for one in (*members, *discovered) if one.role != PREFILL]
        self.upstreams = {member.name: new_state(member, now) for member in members}
        """Replaced by each change, so that a reader's mapping stays as it is."""
        self._serving: dict[str, tuple[UpstreamState, ...]] = {}
        self._lacks = dict[tuple[str, str | None, str], float]()
        """Upstream, client and model: it did not have the model. The values say until when that
        counts, in their order."""

    def join(self, member: Member, now: float, *, tested: bool) -> None:
        """Take in a replica, one that drains or has another weight too.

        Unless it counts as ``tested``, it gets requests once a probe has succeeded.
        """
        known = self.upstreams.get(member.name)
        if known is None:
            known = new_state(member, now)
            if not tested:
                known.health = healths.untested(now)
        known.member, known.draining = member, False
        everyone = [*self.upstreams.values(), known]
        ordered = sorted(everyone, key=lambda one: (one.member.number, one.member.name))
        self.upstreams = {one.member.name: one for one in ordered}
        self._serving.clear()

    def drain(self, name: str) -> None:
        """Send no new requests to a replica that has left."""
        self.upstreams[name].draining = True
        self._serving.clear()

    def remove(self, name: str) -> None:
        """Drop a replica of which no call is under way."""
        self.upstreams = {key: one for key, one in self.upstreams.items() if key != name}
        self._serving.clear()
        self.routing.remove(name)

    def acquire(
        self, outgoing: Outgoing, now: float, excluded: AbstractSet[str] = frozenset()
    ) -> Call | NoRoom:
        """Begin a call to the best upstream that is not excluded, or tell why there is none."""
        while self._lacks and self._lacks[first := next(iter(self._lacks))] <= now:
            del self._lacks[first]
        left: Sequence[UpstreamState] = self._candidates_for(outgoing)
        if excluded:
            left = [one for one in left if one.member.name not in excluded]
        client = outgoing.client
        able = [one for one in left if one.can_accept(now, client)]
        if len(able) == 1:
            why = Route.ONLY if len(self.upstreams) == 1 else Route.RETRY
            return self._begin(able[0], outgoing, now, why)
        if able:
            tier = [one for one in able if one.member.tier == able[0].member.tier]
            best = self.routing.order(outgoing.prefix, loads(tier, now))[0]
            return self._begin(self.upstreams[best.name], outgoing, now, best.why)
        if self._is_lone and left and left[0].has_room(now):
            return self._begin(left[0], outgoing, now)
        if not any(isinstance(one.health_for(client, now).breaker, Up) for one in left):
            free = [one for one in left if not one.is_on_trial(client) and one.has_room(now)]
            if free:
                last = min(free, key=lambda one: one.health_for(client, now).back_at(now))
                return self._begin(last, outgoing, now)
        none = no_room(left, now, client)
        return replace(none, own=True) if self._lacks else none

    def retry_same(self, name: str, outgoing: Outgoing, now: float) -> Call | None:
        """Begin a call to the same upstream once more, if it is there and has room."""
        upstream, client = self.upstreams.get(name), outgoing.client
        if upstream is None:
            return None
        may_try = not upstream.is_on_trial(client) and upstream.has_room(now)
        return (
            self._begin(upstream, outgoing, now)
            if may_try or upstream.can_accept(now, client)
            else None
        )

    def overloaded(self, model: str, client: str | None, now: float) -> bool:
        """Tell whether no upstream of the model can take a client's request at once."""
        return not any(one.can_accept(now, client) for one in self._upstreams_for(model))

    def takes_requests(self, name: str) -> bool:
        """Tell whether an upstream is there and gets clients' requests, if only of what it has."""
        upstream = self.upstreams.get(name)
        return upstream is not None and upstream.member.role != PREFILL

    def serves(self, name: str, model: str) -> bool:
        """Tell whether an upstream is there and serves the model, if only until it has left."""
        if not self.takes_requests(name):
            return False
        upstream = self.upstreams[name]
        drains = upstream.draining and upstream.member.serves(model)
        return drains or upstream in self._upstreams_for(model)

    def refuse_unknown(self, model: str) -> None:
        """Raise ClientError if no upstream declares the model; one without a name is passed."""
        serving = self._upstreams_for(model) if model else ()
        if not serving or serving[0].member.serves(model):
            return
        declared = self._declared
        names = dict.fromkeys(name for one in declared for name in (*one.rename, *one.models))
        listed = ", ".join([*names][:MOST_LISTED]) + (", …" if len(names) > MOST_LISTED else "")
        message = f"The model '{model[:LONGEST_MODEL]}' does not exist. Models here: {listed}."
        raise ClientError(404, message, param="model", code="model_not_found")

    def paused_until(self, outgoing: Outgoing, now: float) -> float | None:
        """Return when the first pause of an upstream of this model ends; None if none is paused."""
        times = (
            one.health_for(outgoing.client, now).paused_until
            for one in self._candidates_for(outgoing)
        )
        return min((time for time in times if time > now), default=None)

    def has_other(self, outgoing: Outgoing, excluded: AbstractSet[str]) -> bool:
        """Tell whether another upstream serves the model."""
        return any(one.member.name not in excluded for one in self._candidates_for(outgoing))

    def may_have(self, outgoing: Outgoing, name: str) -> bool:
        """Tell whether another upstream may have the model that this one lacks."""
        if len(outgoing.model) > LONGEST_MODEL:
            return False  # nothing is remembered of it
        names = {declared_name(one.member.name) for one in self._candidates_for(outgoing)}
        names -= {declared_name(name)}
        return any((each, outgoing.client, outgoing.model) not in self._lacks for each in names)

    def record_lack(self, name: str, outgoing: Outgoing, now: float) -> None:
        """Note that an upstream does not have a model, until its list is read again.

        That holds for all its replicas, and for the client alone: its request may be what was
        refused. Without a list it holds for a while.
        """
        if len(self._lacks) >= MOST_MODELS:
            self._lacks.clear()
        if len(outgoing.model) <= LONGEST_MODEL:
            lack = declared_name(name), outgoing.client, outgoing.model
            self._lacks.pop(lack, None)
            self._lacks[lack] = now + LACK_SECONDS
        self.unlisted(outgoing.model)

    def forget_lack(self, name: str, outgoing: Outgoing) -> None:
        """Forget that an upstream does not have a model: no other one answers its client."""
        self._lacks.pop((declared_name(name), outgoing.client, outgoing.model), None)

    def record_models(self, name: str, models: frozenset[str]) -> None:
        """Note which models an upstream lists, none if it has no list."""
        if (upstream := self.upstreams.get(name)) is not None:
            upstream.listed = models
            kept = self._lacks.items()
            self._lacks = {lack: at for lack, at in kept if lack[0] != declared_name(name)}
            self._serving.clear()

    def is_mixed(self, outgoing: Outgoing) -> bool:
        """Tell whether some upstreams of the model have Anthropic's API, and some have not."""
        return len({one.member.native for one in self._candidates_for(outgoing)}) > 1

    def first_byte(self, call: Call, now: float, *, refused: bool = False) -> None:
        """Note that the upstream has answered; a prompt that it ``refused`` it has not computed."""
        upstream = call.upstream
        upstream.heard_at = now
        if not self._follows:
            pass
        elif refused:
            self.routing.end(call.dispatch)
        else:
            self.routing.first_token(call.dispatch)
        if call.prefill is not None:
            self._end_prefill(call.prefill, now, refused=refused)
        clients, health = upstream.clients, upstream.health
        match health.breaker:
            case Up(failed=0, probes_failed=0, window=0) if not clients.troubles:  # most often
                clients.answered, clients.answered_at, clients.refused = call.client, now, None
            case _:
                before = upstream.shown(now)
                clients.record_answer(call.client, now)
                self._set_health(upstream, healths.record_answer(health, now), before, now)
        self._end_trial(call)

    def record_failure(self, call: Call, failure: Failure, now: float) -> None:
        """Note that the upstream did not answer, or that its answer broke off."""
        upstream, client = call.upstream, call.client
        before, health = upstream.shown(now), upstream.health
        result = failure.reason, failure.retry_after, now
        if failure.personal:
            upstream.heard_at = now
        elif (
            client is None
            or not failure.may_be_provoked
            or upstream.clients.record_result(client, *result)
        ):
            health = healths.record_result(health, *result)
        self._set_health(upstream, health, before, now)
        self._end_trial(call)

    def release(self, call: Call) -> None:
        """Note that a call is over, however it ended. A second time changes nothing."""
        if call.ended:
            return
        call.ended = True
        call.upstream.in_flight -= 1
        self._end_trial(call)
        if self._follows:
            self.routing.end(call.dispatch)
        if call.prefill is not None:
            self.release(call.prefill)

    def record_probe(self, name: str, fault: Reason | None, now: float, *, for_sure: bool) -> None:
        """Note the outcome of a probe; the probe of a replica that has left changes nothing."""
        upstream = self.upstreams.get(name)
        if upstream is None:
            return
        upstream.probed_at = now
        if fault is None:
            upstream.heard_at = now
        health = healths.record_probe(upstream.health, fault, now, for_sure=for_sure)
        self._set_health(upstream, health, upstream.shown(now), now)

    def record_load(self, name: str, load: EngineLoad | None, now: float) -> None:
        """Note what an engine says of its load; None, if it says nothing, changes nothing."""
        upstream = self.upstreams[name]
        if load is not None:
            others = max(0, load.running + load.waiting - upstream.in_flight)
            upstream.signal = LoadSignal(load, others, now)

    def probe_at(self, name: str, every: float) -> float:
        """Return when to probe an upstream: after its pause, or after a long silence."""
        upstream = self.upstreams[name]
        match upstream.health.breaker:
            case Open(until=until):
                return until
            case Up(probes_failed=failed) if failed:
                return upstream.probed_at + SOON
            case _:
                return max(upstream.heard_at, upstream.probed_at) + every

    def can_be_spared(self, name: str, model: str, now: float) -> bool:
        """Tell whether it serves the model, has room, and another could take its place."""
        spared, serving = self.upstreams[name], self._upstreams_for(model)
        if spared not in serving or not spared.has_room(now):
            return False
        return any(one.can_accept(now) for one in serving if one is not spared)

    def count(self, name: str, now: float) -> None:
        """Count a request of the gateway's own against an upstream's rate."""
        if (rate := self.upstreams[name].rate) is not None:
            rate.take(now)

    def record_prefix(self, name: str, prefix: Sequence[int]) -> None:
        """Note that an upstream has computed a prompt that no client sent."""
        sent = self.routing.begin(name, prefix)
        self.routing.first_token(sent)
        self.routing.end(sent)

    def first_available(self, model: str | None, now: float) -> list[str]:
        """Return all names in the order in which requests of no known kind go there.

        The order is the declaration's, healthy ones first: what an upstream keeps for its clients
        (files, batches) is found again where it was put.
        """
        serving = self._upstreams_for(model) if model else self._present
        ordered = sorted(serving, key=lambda one: _WORSE.index(one.shown(now).state(now)))
        return [one.member.name for one in ordered]

    def _candidates_for(self, outgoing: Outgoing) -> tuple[UpstreamState, ...]:
        if (pinned := self.upstreams.get(outgoing.pinned)) is not None:
            return (pinned,)
        serving = self._upstreams_for(outgoing.model)
        if self._lacks:
            having = self._having(outgoing, serving)
            if not (having or any(one.member.names(outgoing.model) for one in serving)):
                # A list may leave an alias out, such as Anthropic's `-latest`.
                others = (one for one in self._present if one.member.serves_all)
                having = self._having(outgoing, sorted(others, key=lambda one: one.member.tier))
            serving = having or serving
        if outgoing.native:
            return tuple(one for one in serving if one.member.native)
        return serving

    def _having(
        self, outgoing: Outgoing, some: Sequence[UpstreamState]
    ) -> tuple[UpstreamState, ...]:
        """Return the upstreams that are not known to lack the request's model."""
        names = [declared_name(one.member.name) for one in some]
        asked = outgoing.client, outgoing.model
        return tuple(compress(some, [(name, *asked) not in self._lacks for name in names]))

    @property
    def _present(self) -> tuple[UpstreamState, ...]:
        """The upstreams that get clients' requests and are not being drained."""
        everyone = self.upstreams.values()
        return tuple(one for one in everyone if not one.draining and one.member.role != PREFILL)

    def _upstreams_for(self, model: str) -> tuple[UpstreamState, ...]:
        """Return the upstreams that serve the model, lower tiers first, or all if none does.

        So it is an upstream that refuses an unknown model, as without a gateway. An alias is for
        the upstreams that name it: one that serves all does not know it. A model that is declared
        goes to no others while none of its replicas is known. Upstreams that declare nothing come
        in question if they list it, or have no list.
        """
        serving = self._serving.get(model)
        if serving is None:
            all_of_them = sorted(self._present, key=lambda one: one.member.tier)
            some = [one for one in all_of_them if one.member.serves(model)]
            awaited = [member for member in self._discovered if member.serves(model)]
            if any(model in one.rename for one in (*(one.member for one in some), *awaited)):
                some = [one for one in some if one.member.names(model)]
            if any(offering := [one.offers(model) for one in some]):
                some = [one for one, offers in zip(some, offering, strict=True) if offers]
            elif some and model:
                self.unlisted(model)
            serving = tuple(some or (() if awaited else all_of_them))
            if len(model) <= LONGEST_MODEL:
                if len(self._serving) >= MOST_MODELS:
                    self._serving.clear()
                self._serving[model] = serving
        return serving

    def _begin_prefill(self, decode: Member, outgoing: Outgoing, now: float) -> Call | None:
        """Begin the part of the best prefill member; None if none has the model and is up."""
        model = decode.rename.get(outgoing.model, outgoing.model)
        able = [one for one in self.upstreams.values() if one.can_prefill(model, now)]
        lowest = min((one.member.tier for one in able), default=0)
        tier = [one for one in able if one.member.tier == lowest]
        for best in self.routing.order(outgoing.prefix, loads(tier, now))[:1]:
            return self._begin(self.upstreams[best.name], outgoing, now, best.why)
        return None

    def _end_prefill(self, call: Call, now: float, *, refused: bool) -> None:
        """End the part of a prefill member: the prompt is computed, unless it was ``refused``.

        The decode engine may have computed it, so this only ends a trial, and no probe is spared.
        """
        if not refused:
            self.routing.first_token(call.dispatch)
            if call.trial:
                state, before = call.upstream, call.upstream.shown(now)
                self._set_health(state, healths.record_answer(state.health, now), before, now)
        self.release(call)

    def _begin(
        self, upstream: UpstreamState, outgoing: Outgoing, now: float, route: Route = Route.RETRY
    ) -> Call:
        upstream.in_flight += 1
        if upstream.rate is not None:
            upstream.rate.take(now)
        trial = not isinstance(upstream.health.breaker, Up)
        upstream.trial_under_way = upstream.trial_under_way or trial
        clients, trouble = upstream.clients, None
        if clients.troubles:
            trouble = clients.trouble_of(outgoing.client)
        if trouble is not None and isinstance(trouble.health.breaker, Up):
            trouble = None
        elif trouble is not None:
            trouble.trial_under_way = True
        name, prefix = upstream.member.name, outgoing.prefix
        sent = self.routing.begin(name, prefix) if self._follows else Dispatch(name, prefix)
        call = Call(upstream, sent, trial, route, outgoing.client, trouble)
        if upstream.member.role == DECODE and outgoing.generates:
            call.prefill = self._begin_prefill(upstream.member, outgoing, now)
        return call

    def _end_trial(self, call: Call) -> None:
        if call.trial:
            call.trial = call.upstream.trial_under_way = False
        if call.trouble is not None:
            call.trouble.trial_under_way = False

    def _set_health(
        self, upstream: UpstreamState, health: Health, shown: Health, now: float
    ) -> None:
        """Set the health, tell of a change of state, and forget a cache that may be gone.

        ``shown`` is what operators saw before.
        """
        if health is upstream.health and not upstream.clients.troubles:  # most often
            return
        name = upstream.member.name
        was, upstream.health = upstream.health, health
        if isinstance(health.breaker, Open) and isinstance(was.breaker, Up):
            self.routing.forget(name)
        after = upstream.shown(now)
        if (state := after.state(now)) is not (before := shown.state(now)):
            seconds = max(0.0, after.back_at(now) - now)
            self._changed(Change(name, before, state, after.why(now), seconds))


def states(table: PoolTable, now: float) -> Iterator[tuple[UpstreamState, State, float]]:
    """Yield each upstream, its state, and for how many seconds it stays open or paused."""
    for upstream in table.upstreams.values():
        health = upstream.shown(now)
        state = State.DRAINING if upstream.draining else health.state(now)
        yield upstream, state, max(0.0, health.back_at(now) - now)
