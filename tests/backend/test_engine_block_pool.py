import pytest

from backend.core.block_pool import BlockPool, BlockPoolCorruptError, OutOfBlocksError, blocks_for


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
