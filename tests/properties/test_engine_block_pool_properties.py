"""The block pool against a model that knows who holds what."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.scheduler.block_pool import BlockPool, OutOfBlocksError


class PoolMachine(RuleBasedStateMachine):
    """Holders allocate, share with one another and let go."""

    @initialize(num_blocks=st.integers(1, 20))
    def start(self, num_blocks):
        self.pool = BlockPool(num_blocks)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, 8))
    def allocate(self, count):
        free = self.pool.num_free
        if count > free:
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count)
            assert self.pool.num_free == free
        else:
            blocks = self.pool.allocate(count)
            held = {block for table in self.tables for block in table}
            assert len(set(blocks)) == count
            assert not held & set(blocks)
            assert 0 not in blocks
            self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data):
        table = data.draw(st.sampled_from(self.tables))
        shared = table[: data.draw(st.integers(0, len(table)))]
        self.pool.share(shared)
        self.tables.append(list(shared))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)

    @invariant()
    def consistent(self):
        self.pool.check_integrity(self.tables)
        held = {block for table in self.tables for block in table}
        assert self.pool.num_used == len(held)
        assert self.pool.num_free == self.pool.num_blocks - len(held)


TestBlockPool = PoolMachine.TestCase
