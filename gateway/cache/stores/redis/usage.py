"""Sums of usage in Redis, for all gateways that share it: one hash for each day.

Law: a row is added whole or not at all, and once, although an answer of Redis may be lost.
"""

from collections.abc import Sequence

import orjson
from redis.crc import key_slot

from gateway.cache.ports import USAGE_DAYS, USAGE_OTHER, USAGE_ROWS, UsageRow
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.scripts import FORMAT, Script, Shard

ROWS_AT_ONCE = 256
"""A script holds up all others, so it must be short."""

_BATCH_SECONDS = 3_600
_STEM = b"refrain:%d:{usage}:" % FORMAT
_DAYS = _STEM + b"days"

ADD_USAGE = Script("""
if not redis.call('SET', ARGV[1], '', 'NX', 'EX', ARGV[2]) then
  return 0
end
local stem, most, other, seconds = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6] * 86400
for at = 7, #ARGV, 3 do
  local day, labels, figures = ARGV[at], ARGV[at + 1], cjson.decode(ARGV[at + 2])
  local key = stem .. day
  local there = redis.call('HGET', key, labels)
  if not there and labels ~= other and redis.call('HLEN', key) >= most then
    labels = other
    there = redis.call('HGET', key, labels)
  end
  if there then
    for name, value in pairs(cjson.decode(there)) do
      figures[name] = (figures[name] or 0) + value
    end
  end
  redis.call('HSET', key, labels, cjson.encode(figures))
  redis.call('EXPIRE', key, seconds)
  redis.call('ZADD', KEYS[1], string.gsub(day, '-', ''), day)
end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[6]))
return 1
""")
"""Adds rows to days.

Arguments: the batch's key, seconds to keep it, stem of the days' keys, most rows of a day, labels
of the other rows, days to keep; then day, labels and figures of each row.
"""


class RedisUsage:
    """The port ``UsageStore``, with a link of its own: a day's rows are large."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._shard = Shard(0, key_slot(_DAYS), b"", (_DAYS,))

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            name = _STEM + f"batch:{batch}:{start}".encode()
            arguments: list[bytes | str | int] = [name, _BATCH_SECONDS, _STEM, USAGE_ROWS]
            arguments += [USAGE_OTHER, USAGE_DAYS]
            for row in rows[start : start + ROWS_AT_ONCE]:
                arguments += [row.day, row.labels, orjson.dumps(dict(row.figures))]
            await self._link.run(ADD_USAGE, self._shard, *arguments)

    async def read(self, since: str) -> list[UsageRow]:
        slot, rows = self._shard.slot, []
        least = since.replace("-", "")
        days = await self._link.command(slot, "ZRANGEBYSCORE", _DAYS, least, "+inf")
        for day in days:
            found = await self._link.command(slot, "HGETALL", _STEM + day)
            rows += [
                UsageRow(day.decode(), labels.decode(), orjson.loads(figures))
                for labels, figures in found.items()
            ]
        return rows

    async def close(self) -> None:
        await self._link.close()
