"""The names of the keys in Redis, and the Lua scripts that change them.

Law: a change is one script, so it happens whole or not at all, whatever happens to its caller. A
script counts only what it did. All keys of a script bear one hash tag, so in a cluster they lie in
one slot; a cluster's store has several such shards. Times come from the clock of Redis, so the
clocks of gateways need not agree.

A shard's keys: ``e:<cache key>`` an entry's bytes; ``used`` the cache keys by last use; ``ends`` by
the time when Redis may forget them; ``size`` the bytes of each; ``total`` the bytes of all, the
number of the latest change (``seq``), and the name of this count (``epoch``), which is another one
after Redis lost everything. ``repair`` is there while the index is rebuilt.

Redis does not undo the writes of a script that fails. A full Redis refuses only the first write of
a script, and no deletion. So the first write of ``put`` is one that it refuses; then ``put``
deletes at least as much as it writes.
"""

from dataclasses import dataclass, field
from hashlib import sha1
from zlib import crc32

from redis.crc import key_slot

FORMAT = 1
"""Part of every name; raise it when the meaning of the keys below changes."""

SLOTS = 16384
CHANNEL = b"refrain:%d:changes" % FORMAT


@dataclass(frozen=True, slots=True)
class Script:
    """Lua, and the digest that is its name in Redis."""

    source: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # Redis names scripts so; nothing about it is secret.
        digest = sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


@dataclass(frozen=True, slots=True)
class Shard:
    """The keys of one hash tag."""

    number: int
    slot: int
    prefix: bytes
    index: tuple[bytes, ...]

    @property
    def head(self) -> tuple[bytes, bytes, int]:
        """The first arguments of each script that changes entries."""
        return self.prefix, CHANNEL, self.number

    def name(self, key: bytes) -> bytes:
        return self.prefix + key


class Shards(tuple[Shard, ...]):
    """All shards of a store."""

    __slots__ = ()

    def of(self, key: bytes) -> Shard:
        return self[crc32(key) % len(self)]


def make_shards(count: int) -> Shards:
    """Return ``count`` shards with slots spread evenly over a cluster."""
    return Shards(_shard(number, count) for number in range(count))


def _shard(number: int, count: int) -> Shard:
    tag = 0
    while key_slot(b"%d" % tag) * count // SLOTS != number:
        tag += 1
    slot = key_slot(b"%d" % tag)
    stem = b"refrain:%d:{%d}:" % (FORMAT, tag)
    parts = (b"used", b"ends", b"size", b"total", b"repair")
    return Shard(number, slot, stem + b"e:", tuple(stem + part for part in parts))


_PRELUDE = """
local used, ends, size, total = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local prefix = ARGV[1]

local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local millis = math.floor(micros / 1000)

local function charge(key)
  return tonumber(redis.call('HGET', size, key)) or 0
end

local function drop(key)
  redis.call('DEL', prefix .. key)
  redis.call('ZREM', used, key)
  redis.call('ZREM', ends, key)
  local freed = charge(key)
  redis.call('HDEL', size, key)
  return redis.call('HINCRBY', total, 'bytes', 0 - freed)
end

-- What Redis has forgotten by itself, or is about to.
local function reap(most)
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', millis, 'LIMIT', 0, most)) do
    drop(key)
  end
end

local function bytes()
  return tonumber(redis.call('HGET', total, 'bytes')) or 0
end

-- Returns how many went; the newest entry, if named, is not one of them.
local function evict(room, newest)
  local evicted, left = 0, bytes()
  while left > room do
    local before = evicted
    for _, key in ipairs(redis.call('ZRANGE', used, 0, 15)) do
      if left <= room then break end
      if key ~= newest then
        left = drop(key)
        evicted = evicted + 1
      end
    end
    if evicted == before then break end
  end
  return evicted
end

local function ensure_epoch(call, origin)
  return call('HSETNX', total, 'epoch', origin .. '.' .. string.format('%.0f', micros))
end

local function announce(origin, key)
  local seq = redis.call('HINCRBY', total, 'seq', 1)
  local epoch = redis.call('HGET', total, 'epoch')
  redis.call('PUBLISH', ARGV[2], table.concat({ARGV[3], epoch, seq, origin, key}, ' '))
end

local function totals(evicted)
  return {redis.call('ZCARD', ends), bytes(), evicted}
end
"""


def _script(source: str) -> Script:
    return Script(_PRELUDE + source)


PUT = _script("""
local origin, key, value, ttl, room = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local evicted = 0
local refused = ensure_epoch(redis.pcall, origin)
local full = type(refused) == 'table' and refused.err
if full then
  -- The memory may hold data of others; a cache makes room, as far as it has entries.
  if not string.find(refused.err, 'OOM') then return refused end
  local before = bytes()
  evicted = evict(before - math.min(2 * #value, tonumber(ARGV[9])), nil)
  if before - bytes() < #value then return refused end
  ensure_epoch(redis.call, origin)
end
announce(origin, key)
local before = charge(key)
if ttl == '' then
  redis.call('SET', prefix .. key, value)
  redis.call('ZADD', ends, '+inf', key)
else
  redis.call('SET', prefix .. key, value, 'PX', ttl)
  redis.call('ZADD', ends, millis + tonumber(ttl), key)
end
redis.call('ZADD', used, micros, key)
redis.call('HSET', size, key, #value)
redis.call('HINCRBY', total, 'bytes', #value - before)
reap(16)
local answer = totals(evicted + evict(room, key))
-- With a part of its bytes it is a smaller cache, and no fault.
answer[4] = (full and answer[2] * 10 < room) and 1 or 0
return answer
""")
"""Store or replace an entry; evict others to make room. The answer ends with 1 if Redis is so full
that hardly any entry stays.

Arguments: prefix, channel, shard, origin, cache key, bytes, milliseconds until Redis may forget the
entry ('' is never), bytes that all entries may take, most bytes to evict from a full Redis.
"""

DELETE = _script("""
local origin, key, digest = ARGV[4], ARGV[5], ARGV[6]
local found = digest and redis.pcall('GET', prefix .. key)
if not digest or type(found) == 'string' and redis.sha1hex(found) == digest then
  drop(key)
  ensure_epoch(redis.call, origin)
  announce(origin, key)
end
return totals(0)
""")
"""Delete an entry; if a digest is given, only while the entry's bytes have that digest.

Arguments: prefix, channel, shard, origin, cache key, digest.
"""

UPKEEP = _script("""
local score = micros
for n = 6, #ARGV do
  score = score + 1
  redis.call('ZADD', used, 'XX', score, ARGV[n])
end
reap(256)
-- What Redis evicted on its own account, a few at a time.
local at = tonumber(ARGV[5])
local some = redis.call('ZRANGE', used, at, at + 255)
local there = 0
for _, key in ipairs(some) do
  if redis.call('EXISTS', prefix .. key) == 1 then there = there + 1 else drop(key) end
end
local reply = totals(evict(tonumber(ARGV[4]), nil))
local entries = reply[1]
local whole = redis.call('ZCARD', used) == entries and redis.call('HLEN', size) == entries
  and redis.call('HEXISTS', total, 'repairing') == 0
reply[4] = #some < 256 and 0 or at + there
reply[5] = whole and 1 or 0
reply[6] = redis.call('HGET', total, 'epoch') or ''
return reply
""")
"""Write down uses, oldest first; evict down to the bound; check that the entries from that place in
``used`` on are still there. Also returns the next place, whether the index is whole, the epoch."""

REPAIR = _script("""
if not redis.call('SET', KEYS[5], '', 'NX', 'PX', 60000) then return 0 end
redis.call('HSET', total, 'repairing', 1, 'bytes', 0)
redis.call('DEL', used, ends, size)
return 1
""")
"""Begin to rebuild the index, unless another gateway does already."""

ADOPT = _script("""
redis.call('PEXPIRE', KEYS[5], 60000)
for n = 5, #ARGV do
  local key = ARGV[n]
  local name = prefix .. key
  if redis.call('TYPE', name).ok == 'string' and redis.call('HEXISTS', size, key) == 0 then
    local bytes, left = redis.call('STRLEN', name), redis.call('PTTL', name)
    redis.call('HSET', size, key, bytes)
    redis.call('HINCRBY', total, 'bytes', bytes)
    redis.call('ZADD', used, micros, key)
    redis.call('ZADD', ends, left < 0 and '+inf' or millis + left, key)
  end
end
if ARGV[4] == 'last' then
  redis.call('HDEL', total, 'repairing')
  redis.call('DEL', KEYS[5])
end
return totals(0)
""")
"""Add entries that are there to the index.

Arguments: prefix, channel, shard, whether these are the last ones, cache keys.
"""

BEAT = Script("""
-- Refused by a full Redis; then there is none until there is room.
redis.pcall('HSETNX', KEYS[4], 'epoch', ARGV[5])
local epoch, seq = unpack(redis.call('HMGET', KEYS[4], 'epoch', 'seq'))
local beat = table.concat({ARGV[3], epoch or '-', seq or 0, ARGV[4]}, ' ')
return redis.call('PUBLISH', ARGV[2], beat)
""")
"""Publish the number of the latest change.

Arguments: prefix, channel, shard, when the beat was sent, a new epoch.
"""

WALK = Script("""
local ends, prefix = KEYS[2], ARGV[1]
local score, last, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
local start = 0
if score ~= '' then
  local rank = redis.call('ZRANK', ends, last)
  if rank and redis.call('ZSCORE', ends, last) == score then
    start = rank + 1
  else
    start = redis.call('ZCOUNT', ends, '-inf', '(' .. score)
  end
end
local page = redis.call('ZRANGE', ends, start, start + limit - 1, 'WITHSCORES')
local read, values, left = {}, {}, tonumber(ARGV[5])
for n = 1, #page, 2 do
  local value = redis.call('GET', prefix .. page[n])
  read[n], read[n + 1] = page[n], page[n + 1]
  values[#values + 1] = value
  left = left - (value and #value or 0)
  if left <= 0 then break end
end
local more = #read < #page or #page == 2 * limit
return {read, values, more and 1 or 0}
""")
"""Read a page of entries in the order of ``ends``, from one score and key on; also returns whether
there may be more. Arguments: prefix, score, key, entries and bytes after which the page ends."""

CLAIM = Script("""
local claim = string.sub(ARGV[1], 1, -3) .. 'c:' .. ARGV[2]
local holder = redis.call('GET', claim)
if ARGV[5] == 'take' and not holder then
  return redis.call('SET', claim, ARGV[3], 'PX', ARGV[4]) and 1
end
-- Our own may be there still: it was released while Redis could not be reached.
if holder ~= ARGV[3] then return 0 end
if ARGV[5] == 'release' then return redis.call('DEL', claim) end
return redis.call('PEXPIRE', claim, ARGV[4])
""")
"""Take, renew or release a claim, unless another process has it; tell whether that was done.

Arguments: prefix, slot, holder, milliseconds until the claim lapses, and which of the three.
"""

ENSURE_KEY = Script("""
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
"""Return the wrapped data key that holds from now on.

Arguments: master key, proposed data key, milliseconds to keep it ('' is without end).
"""


def scope_shard(tag: bytes) -> Shard:
    """Return a shard of which the only key holds the data keys of a scope."""
    name = b"refrain:%d:scope:%s" % (FORMAT, tag.hex().encode())
    return Shard(0, key_slot(name), b"", (name,))
