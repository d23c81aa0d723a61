import pytest

from backend.scheduler.block_pool import BLOCK_SIZE, BlockPool, BlockPoolCorruptError
from backend.scheduler.cache_events import BlockRemoved, BlocksStored, EventBatch, EventLog
from backend.scheduler.prefix_cache import OTHER_TENANTS, PrefixCache, root_hash, tenant_of

PROMPT = list(range(100))


def stored(cache, tokens, salt=""):
    """Compute ``tokens`` and let go of the blocks; return them and their hashes."""
    hashes = cache.hash_blocks(tokens, salt)
    blocks = cache.allocate(-(-len(tokens) // BLOCK_SIZE))
    cache.cache_full_blocks(blocks[: len(hashes) - 1], hashes[1:], hashes[0], salt)
    cache.pool.release(blocks)
    cache.check_integrity()
    return blocks, hashes


def found(cache, tokens, salt=""):
    return cache.match_prefix(cache.hash_blocks(tokens, salt), len(tokens))


def test_the_longest_prefix_of_full_blocks_is_found():
    cache = PrefixCache(BlockPool(20))
    blocks, _ = stored(cache, PROMPT)
    assert found(cache, [*PROMPT, 7, 8]) == blocks[:6]
    assert found(cache, [*PROMPT[:50], 7, 7, 7]) == blocks[:3]
    assert found(cache, [7, *PROMPT]) == []


@pytest.mark.parametrize(("length", "blocks"), [(96, 5), (97, 6), (16, 0), (17, 1), (1, 0)])
def test_a_hit_leaves_a_token_to_compute(length, blocks):
    cache = PrefixCache(BlockPool(20))
    stored(cache, PROMPT)
    assert len(found(cache, PROMPT[:length])) == blocks


def test_a_block_is_known_by_all_that_comes_before_it():
    cache = PrefixCache(BlockPool(20))
    stored(cache, PROMPT)
    assert found(cache, [99, *PROMPT[1:]]) == []


def test_salts_and_models_keep_apart_what_has_the_same_tokens():
    cache = PrefixCache(BlockPool(20), fingerprint=b"model")
    blocks, _ = stored(cache, PROMPT, "one")
    assert found(cache, PROMPT, "one") == blocks[:6]
    assert found(cache, PROMPT, "two") == found(cache, PROMPT, "") == []
    roots = {
        root_hash(fingerprint, salt)
        for fingerprint in (b"", b"model", b"mode")
        for salt in ("", "l", "one")
    }
    assert len(roots) == 9


def test_tokens_that_differ_in_high_bytes_alone_are_different():
    cache = PrefixCache(BlockPool(20))
    stored(cache, [1] * 32)
    assert found(cache, [1 + 2**16] * 32) == found(cache, [1 + 2**24] * 32) == []


def test_of_two_blocks_with_one_content_the_first_is_found():
    cache = PrefixCache(BlockPool(20))
    hashes = cache.hash_blocks(PROMPT, "")
    first, second = cache.allocate(6), cache.allocate(6)
    cache.cache_full_blocks(first, hashes[1:], hashes[0], "")
    cache.cache_full_blocks(second, hashes[1:], hashes[0], "")
    assert cache.match_prefix(hashes, 100) == first
    cache.pool.release(first)
    cache.pool.release(second)
    cache.check_integrity()
    # The second ones are of no use to anybody, and are handed out before the first.
    assert set(cache.allocate(14)) & set(first) == set()


def test_blocks_handed_out_anew_are_found_no_longer_tails_first():
    cache = PrefixCache(BlockPool(7))
    blocks, _ = stored(cache, PROMPT)
    cache.allocate(3)
    assert found(cache, PROMPT) == blocks[:4]
    cache.allocate(4)
    assert found(cache, PROMPT) == []
    assert len(cache) == 0


def test_what_is_forgotten_is_not_found_and_goes_first():
    cache = PrefixCache(BlockPool(10))
    blocks, _ = stored(cache, PROMPT)
    cache.evict(blocks[2:])
    assert found(cache, PROMPT) == blocks[:2]
    assert set(cache.allocate(8)) & set(blocks[:2]) == set()
    cache.check_integrity()


def test_events_tell_of_chains_and_of_blocks_that_go():
    events = EventLog(100)
    cache = PrefixCache(BlockPool(8), fingerprint=b"m", events=events)
    _, hashes = stored(cache, PROMPT[:48])
    assert events.take() == [EventBatch(0, (BlocksStored(hashes[0], tuple(hashes[1:]), 48),))]
    assert hashes[0] == root_hash(b"m", "")
    _, longer = stored(cache, PROMPT[:80])
    cache.allocate(5)
    tail = BlocksStored(hashes[3], tuple(longer[4:]), 32)
    removed = BlockRemoved(longer[3]), BlockRemoved(longer[2])
    assert events.take() == [EventBatch(1, (tail, *removed))]
    assert events.take() == []


def test_events_that_nobody_takes_are_dropped_and_leave_a_gap_in_the_numbers():
    events = EventLog(2)
    for number in range(5):
        events.append(BlockRemoved(b"%d" % number))
    assert events.take() == [EventBatch(3, (BlockRemoved(b"3"), BlockRemoved(b"4")))]


def test_a_tenants_share_is_counted_without_its_salt_and_within_bounds():
    cache = PrefixCache(BlockPool(400))
    for number in range(70):
        stored(cache, [number] * 32, f"salt {number}")
    stored(cache, PROMPT)
    counts = cache.blocks_by_tenant()
    assert counts[tenant_of("salt 3")] == 2
    assert counts[OTHER_TENANTS] == 6 * 2 + 6
    assert len(counts) == 65
    assert not any("salt" in name for name in counts)
    cache.allocate(400)
    assert cache.blocks_by_tenant() == {}


def test_integrity_check_sees_a_hash_that_leads_elsewhere():
    cache = PrefixCache(BlockPool(10))
    _, hashes = stored(cache, PROMPT)
    cache._block_of[hashes[1]] = 9
    with pytest.raises(BlockPoolCorruptError, match="hashes and blocks"):
        cache.check_integrity()
