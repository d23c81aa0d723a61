"""Wrapped data keys in Redis, beside the entries they are for, shared by all gateways.

Law: whoever asks for a scope's key at the same moment is told the same one, and one that was
forgotten is gone for all. Redis keeps a scope's keys as long as an entry may need them; one that
Redis evicts on its own account costs the scope its entries and no more.
"""

import math
from collections.abc import Callable
from typing import Any

from redis.crc import key_slot

from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.scripts import FORMAT, KEPT_AT_MOST, Script, Shard

_FIND = Script("return redis.call('HGET', KEYS[1], ARGV[1])")

_ENSURE = Script("""
local fresh = redis.call('EXISTS', KEYS[1]) == 0
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
local left = redis.call('PTTL', KEYS[1])
if ARGV[3] == '' then
  redis.call('PERSIST', KEYS[1])
elseif fresh or (left >= 0 and left < tonumber(ARGV[3])) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return redis.call('HGET', KEYS[1], ARGV[1])
""")
"""Arguments: master key, proposed data key, milliseconds to keep it ('' is without end)."""

_FORGET = Script("return redis.call('DEL', KEYS[1])")


class RedisScopeKeys:
    """See the port ``ScopeKeys``. Does not own the link."""

    def __init__(self, link: RedisLink, *, clock: Callable[[], float]) -> None:
        self._link = link
        self._clock = clock

    async def find(self, tag: bytes, master: bytes) -> bytes | None:
        found: bytes | None = await self._run(_FIND, tag, master)
        return found

    async def ensure(self, tag: bytes, master: bytes, proposed: bytes, until: float) -> bytes:
        kept = min(max(until - self._clock(), 1.0), KEPT_AT_MOST)
        milliseconds: int | bytes = b"" if until == math.inf else int(kept * 1000)
        there: bytes = await self._run(_ENSURE, tag, master, proposed, milliseconds)
        return there

    async def forget(self, tag: bytes) -> None:
        await self._run(_FORGET, tag)

    async def close(self) -> None:
        """Leave the link to the store, whose it is."""

    async def _run(self, script: Script, tag: bytes, *arguments: Any) -> Any:
        name = b"refrain:%d:scope:%s" % (FORMAT, tag.hex().encode())
        return await self._link.run(script, Shard(0, key_slot(name), b"", (name,)), *arguments)
