"""Sums that gateways share in Redis: the use of gateway keys, and figures of usage.

Each window of time is a hash. The windows of keys have one hash tag, so a change of several is one
script, and in a cluster they lie in one slot. Redis forgets a window once it can no longer count.

Law: a change is counted whole or not at all, and once, although an answer of Redis may be lost. The
sender repeats it under the same name.
"""

from collections.abc import Mapping, Sequence

import orjson
from redis.crc import key_slot

from gateway.cache.ports import StoreError
from gateway.cache.stores.counts import USAGE_DAYS, USAGE_OTHER, USAGE_ROWS, Change, Count, UsageRow
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.scripts import FORMAT, Script, Shard
from gateway.cache.stores.windows import PERIODS

_KEYS_STEM = b"refrain:%d:{keys}:" % FORMAT
_KEYS_SLOT = key_slot(_KEYS_STEM)

COUNTS_AT_ONCE = 500
ROWS_AT_ONCE = 256
"""A script holds up all others, so it must be short."""

_REPEATED_SECONDS = 600
"""An add of counts is repeated within this time: each second from its failure on."""

ADD_COUNTS = Script("""
local fresh = redis.call('SET', KEYS[1], '', 'NX', 'EX', ARGV[1])
local totals = {}
for n = 2, #ARGV, 5 do
  local key, field = KEYS[tonumber(ARGV[n])], ARGV[n + 1]
  local amount, known = tonumber(ARGV[n + 2]), tonumber(ARGV[n + 3])
  local total = tonumber(redis.call('HGET', key, field) or '0')
  local change = math.max(0, known + amount - total)
  if fresh then change = amount + math.max(0, known - total) end
  if change ~= 0 then
    total = redis.call('HINCRBY', key, field, string.format('%.0f', change))
    redis.call('EXPIRE', key, ARGV[n + 4])
  end
  totals[#totals + 1] = total
end
return totals
""")
"""Adds to counts of keys once for each batch, and returns their totals.

The first key is the batch's. Arguments: the seconds to keep it; then of each count: which key, the
holder, the change, the total that is known, and the seconds to keep the window.
"""

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


class RedisKeyCounts:
    """The port ``KeyCounts``; ``link`` is closed by its owner."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def load(self, windows: Sequence[tuple[str, int]]) -> Mapping[Count, int]:
        found: dict[Count, int] = {}
        for what, window in windows:
            answer = await self._link.command(_KEYS_SLOT, "HGETALL", _window(what, window))
            # The clients for one server and for a cluster differ.
            if not isinstance(answer, dict):
                answer = dict(zip(answer[::2], answer[1::2], strict=True))
            for holder, amount in answer.items():
                found[Count(holder.decode(), what, window)] = int(amount)
        return found

    async def add(self, batch: str, changes: Mapping[Count, Change]) -> Mapping[Count, int]:
        counts, totals = list(changes.items()), []
        for start in range(0, len(counts), COUNTS_AT_ONCE):
            name = _KEYS_STEM + f"batch:{batch}:{start}".encode()
            totals += await self._add(name, counts[start : start + COUNTS_AT_ONCE])
        return dict(zip(changes, totals, strict=True))

    async def _add(self, batch: bytes, changes: Sequence[tuple[Count, Change]]) -> list[int]:
        windows = dict.fromkeys(_window(count.what, count.window) for count, _ in changes)
        names = (batch, *windows)
        numbers = {name: number for number, name in enumerate(names, 1)}
        arguments = [
            argument
            for count, (amount, known) in changes
            for argument in (
                numbers[_window(count.what, count.window)],
                count.holder.encode(),
                amount,
                known,
                PERIODS[count.what.partition("/")[2]].seconds,
            )
        ]
        shard = Shard(0, _KEYS_SLOT, b"", names)
        totals = await self._link.run(ADD_COUNTS, shard, _REPEATED_SECONDS, *arguments)
        if not isinstance(totals, list) or len(totals) != len(changes):
            raise StoreError("Redis gave another number of counts than was asked for")
        return [int(total) for total in totals]

    async def close(self) -> None: ...


def _window(what: str, window: int) -> bytes:
    return _KEYS_STEM + b"%b:%d" % (what.encode(), window)


class RedisUsage:
    """The port ``UsageStore``, with its own link: a day's rows are large."""

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
