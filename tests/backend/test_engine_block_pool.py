import pytest

from backend.scheduler.block_pool import (
    BlockPool,
    BlockPoolCorruptError,
    OutOfBlocksError,
    blocks_for,
)
from backend.scheduler.scheduler import Scheduler


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_blocks_for(tokens, blocks):
    assert blocks_for(tokens) == blocks


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_allocation_is_all_or_nothing():
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(OutOfBlocksError, match="2 blocks wanted, 1 free"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_a_shared_block_is_freed_by_its_last_holder():
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    pool.release(blocks)
    assert pool.num_used == 1
    pool.release(blocks[:1])
    assert pool.num_used == 0


@pytest.mark.parametrize("block", [0, 1, 9, -1])
def test_releasing_or_sharing_what_nobody_holds_is_a_defect(block):
    pool = BlockPool(4)
    with pytest.raises(BlockPoolCorruptError):
        pool.release([block])
    with pytest.raises(BlockPoolCorruptError):
        pool.share([block])
    pool.check_integrity([])


def test_integrity_check_sees_a_lost_block_and_a_second_owner():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    with pytest.raises(BlockPoolCorruptError, match="1 holders counted, 0 found"):
        pool.check_integrity([])
    with pytest.raises(BlockPoolCorruptError, match="1 holders counted, 2 found"):
        pool.check_integrity([blocks, blocks[:1]])
    with pytest.raises(BlockPoolCorruptError, match="0 holders counted, 1 found"):
        pool.check_integrity([[*blocks, 4]])
    with pytest.raises(BlockPoolCorruptError, match="not the pool's"):
        pool.check_integrity([[*blocks, 77]])


class Counted(list):
    """Counts how many of its items are looked at."""

    def __init__(self, items):
        super().__init__(items)
        self.looks = 0

    def __getitem__(self, place):
        items = super().__getitem__(place)
        self.looks += len(items) if isinstance(place, slice) else 1
        return items


MOST = 1_000


def test_a_large_pool_is_checked_a_part_at_a_time():
    engine = Scheduler(BlockPool(100_000), max_num_seqs=1, max_tokens_per_step=1)
    pool, cache = engine._running.pool, engine._running.cache
    pool._holders, pool._next, pool._previous = map(
        Counted, (pool._holders, pool._next, pool._previous)
    )
    cache._hash_of = Counted(cache._hash_of)
    seen = []
    for _ in range(101):
        before = pool._checked
        engine.check_integrity(MOST)
        seen.append((before, pool._checked))
    assert seen[:2] == [(0, MOST), (MOST, 2 * MOST)]
    assert seen[-2:] == [(99_000, 100_000), (100_000, MOST)]
    looks = [each.looks for each in (pool._holders, pool._next, pool._previous, cache._hash_of)]
    assert max(looks) <= 101 * (3 * MOST + 10)


def check_all(engine):
    for _ in range(10):
        engine.check_integrity(MOST)


@pytest.mark.parametrize("damage", ["lost", "torn", "count", "hash"])
def test_each_damage_of_a_large_pool_is_found_in_one_round(damage):
    engine = Scheduler(BlockPool(10 * MOST), max_num_seqs=1, max_tokens_per_step=1)
    pool = engine._running.pool
    check_all(engine)
    match damage:
        case "lost":
            pool._holders[7_500] = 1
        case "torn":
            pool._next[7_500] = 7_502
        case "count":
            pool.num_free -= 1
        case "hash":
            engine._running.cache._hash_of[7_500] = b"unknown"
    with pytest.raises(BlockPoolCorruptError):
        check_all(engine)


def test_a_held_block_on_the_free_list_is_found_by_its_neighbour():
    pool = BlockPool(10)
    pool._holders[5] = 1
    pool.num_free = 9
    pool.check_integrity([[5]], range(7, 10))
    with pytest.raises(BlockPoolCorruptError, match="on the free list, and held: 3 or 5"):
        pool.check_integrity([[5]], range(1, 5))


def test_what_was_kept_is_handed_out_last_oldest_first_and_tails_before_heads():
    pool = BlockPool(6)
    first, second = pool.allocate(2), pool.allocate(2)
    pool.mark_cached([*first, *second])
    pool.release(first)
    pool.release(second)
    assert pool.allocate(6) == [5, 6, 2, 1, 4, 3]


def test_what_is_not_kept_is_handed_out_before_blocks_that_were_freed_earlier():
    pool = BlockPool(2)
    [kept], [plain] = pool.allocate(1), pool.allocate(1)
    pool.mark_cached([kept])
    pool.release([kept])
    pool.release([plain])
    assert pool.allocate(2) == [plain, kept]


def test_a_free_block_can_be_taken_back_for_as_long_as_its_content_is_kept():
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    pool.mark_cached(blocks[1:2])
    pool.release(blocks)
    pool.share(blocks[1:2])
    assert (pool.num_free, pool.is_free(blocks[1])) == (2, False)
    pool.check_integrity([blocks[1:2]])
    pool.release(blocks[1:2])
    pool.evict(blocks[1])
    assert pool.allocate(1) == [blocks[1]]
    pool.release([blocks[1]])
    with pytest.raises(BlockPoolCorruptError, match="no holder and nothing kept"):
        pool.share([blocks[1]])


def test_sharing_is_all_or_nothing():
    pool = BlockPool(3)
    [held] = pool.allocate(1)
    with pytest.raises(BlockPoolCorruptError):
        pool.share([held, 3])
    pool.check_integrity([[held]])


def test_a_spoiled_block_is_erased_once_when_its_last_holder_lets_go():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    pool.mark_corrupt(blocks)
    pool.release(blocks)
    assert pool.take_to_erase() == [blocks[1]]
    pool.release(blocks[:1])
    assert pool.take_to_erase() == [blocks[0]]
    assert pool.take_to_erase() == []
    again = pool.allocate(3)
    pool.release(again)
    assert pool.take_to_erase() == []


def test_blocks_held_by_those_who_leave_alone_will_be_free():
    pool = BlockPool(5)
    leaving, staying = pool.allocate(3), pool.allocate(1)
    pool.share(leaving[:2])
    assert pool.num_freed_by([leaving]) == 1
    assert pool.num_freed_by([leaving, leaving[:2]]) == 3
    assert pool.num_freed_by([leaving, staying]) == 2


def test_integrity_check_sees_a_torn_free_list_and_a_wrong_count():
    pool = BlockPool(4)
    pool.num_free = 3
    with pytest.raises(BlockPoolCorruptError, match="3 free counted, 4 found"):
        pool.check_integrity([])
    pool.num_free = 4
    pool._next[2] = 4
    with pytest.raises(BlockPoolCorruptError, match="torn between 2, 4"):
        pool.check_integrity([])
    pool._previous[1], pool._next[4] = 4, 1
    pool._next[2], pool._next[0], pool._previous[1] = 3, 1, 4
    with pytest.raises(BlockPoolCorruptError):
        pool.check_integrity([])
