"""What holders of gateway keys have used, in a Redis that several gateways share.

Each window of time is a hash: of its fields one is a holder's amount. All have one hash tag, so a
change of several is one script, and in a cluster they lie in one slot. Redis forgets a window once
it can no longer count.
"""

from collections.abc import Mapping, Sequence

from redis.crc import key_slot

from gateway.cache.ports import Count, StoreError
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.scripts import FORMAT, Script, Shard

_PREFIX = b"refrain:%d:{keys}:" % FORMAT
_SLOT = key_slot(_PREFIX)
_KEPT_SECONDS = {"minute": 600, "day": 4 * 86_400, "month": 100 * 86_400}
"""From the last change on; longer than a window, for clocks that differ."""

ADD = Script("""
local totals = {}
for n = 1, #ARGV, 4 do
  local key, field = KEYS[tonumber(ARGV[n])], ARGV[n + 1]
  if ARGV[n + 2] == '0' then
    totals[#totals + 1] = tonumber(redis.call('HGET', key, field) or '0')
  else
    totals[#totals + 1] = redis.call('HINCRBY', key, field, ARGV[n + 2])
    redis.call('EXPIRE', key, ARGV[n + 3])
  end
end
return totals
""")
"""Add to amounts, and return their totals. Arguments, of each: which key, the holder, the change,
and the seconds to keep the window."""


class RedisKeyCounts:
    """The port ``KeyCounts``; ``link`` is closed by its owner."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def load(self, windows: Sequence[tuple[str, int]]) -> Mapping[Count, int]:
        found: dict[Count, int] = {}
        for what, window in windows:
            answer = await self._link.command(_SLOT, "HGETALL", _name(what, window))
            # The clients for one server and for a cluster differ.
            if not isinstance(answer, dict):
                answer = dict(zip(answer[::2], answer[1::2], strict=True))
            for holder, amount in answer.items():
                found[Count(holder.decode(), what, window)] = int(amount)
        return found

    async def add(self, changes: Mapping[Count, int]) -> Mapping[Count, int]:
        names = list(dict.fromkeys(_name(count.what, count.window) for count in changes))
        numbers = {name: number for number, name in enumerate(names, 1)}
        arguments = [
            argument
            for count, delta in changes.items()
            for argument in (
                numbers[_name(count.what, count.window)],
                count.holder.encode(),
                delta,
                _KEPT_SECONDS[count.what.partition("/")[2]],
            )
        ]
        totals = await self._link.run(ADD, Shard(0, _SLOT, b"", tuple(names)), *arguments)
        if not isinstance(totals, list) or len(totals) != len(changes):
            raise StoreError("Redis gave another number of counts than was asked for")
        return dict(zip(changes, map(int, totals), strict=True))

    async def close(self) -> None:
        """Do nothing: the store closes the link."""


def _name(what: str, window: int) -> bytes:
    return _PREFIX + b"%b:%d" % (what.encode(), window)
