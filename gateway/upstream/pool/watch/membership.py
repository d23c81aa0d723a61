"""Which upstreams a pool has: the declared ones, and replicas that come and go.

Laws:
- A list changes nothing for calls under way. A replica that has left gets no new requests, and is
  dropped once nothing is under way there.
- A list counts as a whole: if one of its replicas cannot be made, nothing changes.
- A replica that joins gets requests once a probe has succeeded and it is warm. If no other one of
  its upstream is up, it gets them at once, as a declared upstream does at start.
- An upstream is open from here on until it is dropped, and nobody else opens or closes it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from gateway import background
from gateway.protocol.http.messages import declared_name, replica_name
from gateway.upstream.pool.health import Up
from gateway.upstream.pool.pool import UpstreamPool
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.watch.discovery import RETRY_SECONDS, Address, Source
from gateway.upstream.pool.watch.probes import ModelLists
from gateway.upstream.wire.http_client import HttpUpstream

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 0.2
"""Between two looks at the replicas that have left."""
_MOST_LISTED = 8
LISTS_SECONDS = 1.0
"""The longest wait for the lists of models at start."""


@dataclass(frozen=True, slots=True, eq=False)
class Discovered:
    """A declared upstream whose replicas ``source`` lists; ``make`` makes one, by its name."""

    label: str
    source: Source
    make: Callable[[str, Address], HttpUpstream]
    member: Callable[[str, Address], Member]


@dataclass(eq=False)
class Membership:
    """The one owner of which upstreams a pool has; ``upstreams`` is shared with all who send.

    ``watch`` probes an upstream until it is cancelled. ``greet`` is called for each replica that
    joins after the start.
    """

    upstreams: dict[str, HttpUpstream]
    pool: UpstreamPool
    watch: Callable[[str], Coroutine[Any, Any, None]]
    discovered: Sequence[Discovered] = ()
    _: KW_ONLY
    greet: Callable[[HttpUpstream], Coroutine[Any, Any, None]] | None = None
    lists: ModelLists | None = None
    _watchers: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open all upstreams, look for replicas once, and follow them until the end."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close)
            for upstream in self.upstreams.values():
                await upstream.open()
            if self.lists is not None:
                await self.lists.read_all(LISTS_SECONDS)
            for name in self.upstreams:
                self._begin_watch(name)
            waits = await asyncio.gather(*map(self.refresh, self.discovered))
            tasks = [
                background.start(f"replicas of {one.label}", partial(self._follow, one, wait))
                for one, wait in zip(self.discovered, waits, strict=True)
            ]
            if tasks:
                tasks.append(background.start("replicas that have left", self._drop_idle))
            stack.push_async_callback(_cancel, tasks)
            yield

    def details(self) -> dict[str, Any]:
        """Return the part of ``/readyz`` about discovery."""
        return {
            one.label: {"replicas": len(self._replicas(one)), "problem": one.source.problem}
            for one in self.discovered
        }

    async def refresh(self, one: Discovered) -> float:
        """Look for replicas; return the seconds after which to look again."""
        try:
            addresses, wait = await one.source.look()
            await self.apply(one, addresses)
        except Exception:
            log.exception("the replicas of upstream %s could not be looked up", one.label)
            return RETRY_SECONDS
        return wait

    async def apply(self, one: Discovered, addresses: Sequence[Address]) -> None:
        """Take the whole list of an upstream's replicas; an empty one changes nothing."""
        if not addresses:
            return
        table = self.pool.table
        listed = {replica_name(one.label, address.text): address for address in addresses}
        before = self._replicas(one)
        left = [name for name in before if name not in listed]
        is_up = any(
            isinstance(table.upstreams[name].health.breaker, Up)
            for name in before
            if name in listed
        )
        members = {name: one.member(name, address) for name, address in listed.items()}
        made = {
            name: one.make(name, address)
            for name, address in listed.items()
            if name not in self.upstreams
        }
        for upstream in made.values():
            await upstream.open()
        self.upstreams.update(made)
        for name, member in members.items():
            if name not in before or table.upstreams[name].member != member:
                table.join(member, self.pool.clock(), tested=not is_up)
            if name not in self._watchers:
                self._begin_watch(name, is_new=bool(before))
        for name in left:
            table.drain(name)
            self._watchers.pop(name).cancel()
        joined = [name for name in listed if name not in before]
        if joined or left:
            log.info(
                "upstream %s: %d replicas%s%s",
                one.label,
                len(listed),
                _shown("joined", joined),
                _shown("left", left),
            )
            self.pool.queue.admit()

    def _replicas(self, one: Discovered) -> list[str]:
        """Return the names of an upstream's replicas that have not left."""
        present = self.pool.table.upstreams.items()
        return [
            name
            for name, state in present
            if not state.draining and declared_name(name) == one.label
        ]

    def _begin_watch(self, name: str, *, is_new: bool = False) -> None:
        watch = partial(self._watch, name, is_new=is_new)
        self._watchers[name] = background.start(f"probes of {name}", watch)

    async def _watch(self, name: str, *, is_new: bool) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch(name))
            if is_new and self.greet is not None:
                group.create_task(self.greet(self.upstreams[name]))

    async def _follow(self, one: Discovered, wait: float) -> None:
        while True:
            await asyncio.sleep(wait)
            wait = await self.refresh(one)

    async def _drop_idle(self) -> None:
        """Close each replica that has left, once nothing is under way there."""
        while True:
            await asyncio.sleep(_DRAIN_SECONDS)
            pinned = {lane[1] for lane in self.pool.queue.waiting.lanes}
            for name, state in self.pool.table.upstreams.items():
                idle = state.in_flight == 0 and self.upstreams[name].in_use == 0
                if state.draining and idle and name not in pinned:
                    self.pool.table.remove(name)
                    self.pool.affinity.forget(name)
                    upstream = self.upstreams.pop(name)
                    try:
                        await upstream.close()
                    except Exception:
                        log.exception("the connections to %s could not be closed", name)

    async def _close(self) -> None:
        await _cancel([*self._watchers.values()])
        for upstream in self.upstreams.values():
            await upstream.close()


async def _cancel(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _shown(what: str, names: Sequence[str]) -> str:
    addresses = [name.partition("#")[2] for name in names[:_MOST_LISTED]]
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"; {what}: {', '.join(addresses)}{more}" if names else ""
