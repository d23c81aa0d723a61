import pytest

from backend.scheduler.block_pool import (
    BlockPool,
    BlockPoolCorruptError,
    OutOfBlocksError,
    blocks_for,
)


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
