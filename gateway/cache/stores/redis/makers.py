"""The makers of values in Redis, for all gateways of one store.

Law: two hashes hold them. Once the newer one is full, it replaces the older one, whose digests are
forgotten. So the memory is bounded, and what was noted lately is there.
"""

from collections.abc import Callable, Mapping, Sequence

from redis.crc import key_slot

from gateway.cache.ports import MOST_MAKERS, StoreUnavailableError
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.scripts import FORMAT, Script, Shard

_STEM = b"refrain:%d:{makers}:" % FORMAT
_KEPT_SECONDS = 30 * 86_400
"""From the last note on."""

ADD_MAKERS = Script("""
local newer, older = KEYS[1], KEYS[2]
if redis.call('HLEN', newer) >= tonumber(ARGV[1]) then
  redis.call('RENAME', newer, older)
end
for n = 4, #ARGV do
  redis.call('HSET', newer, ARGV[n], ARGV[3])
end
redis.call('EXPIRE', newer, ARGV[2])
return 1
""")
"""Notes digests. Arguments: the most of one hash, seconds to keep it, the maker, the digests."""


class RedisMakers:
    """The port ``MakerStore``; ``link`` is closed by its owner."""

    def __init__(
        self,
        link: RedisLink,
        usable: Callable[[], bool] = lambda: True,
        *,
        seconds: float,
        most: int = MOST_MAKERS,
    ) -> None:
        """``usable`` tells whether the store is used at present."""
        self.seconds = seconds
        self._link, self._usable, self._most = link, usable, most
        names = (_STEM + b"newer", _STEM + b"older")
        self._shard = Shard(0, key_slot(_STEM), b"", names)

    async def find(self, digests: Sequence[bytes]) -> Mapping[bytes, str]:
        self._check()
        found: dict[bytes, str] = {}
        for name in reversed(self._shard.index):
            makers = await self._link.command(self._shard.slot, "HMGET", name, *digests)
            found |= {
                digest: maker.decode()
                for digest, maker in zip(digests, makers, strict=True)
                if maker is not None
            }
        return found

    async def add(self, digests: Sequence[bytes], maker: str) -> None:
        self._check()
        arguments = (self._most, _KEPT_SECONDS, maker.encode(), *digests)
        await self._link.run(ADD_MAKERS, self._shard, *arguments)

    async def close(self) -> None: ...
    def _check(self) -> None:
        if not self._usable():
            raise StoreUnavailableError("the store is not answering")
