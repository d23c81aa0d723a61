"""A device without a model: it knows what every slot of the KV cache must hold.

The KV of a token depends on all tokens before it and on the salt, so a slot's content is a chain of
hashes over both. A step's writes can be read by its own sequences at once, as on a device that runs
steps in order, and by others once the step was collected. Reading anything else fails the test.
"""

from collections import deque

from backend.scheduler.block_pool import BLOCK_SIZE

GARBAGE = object()


class Script:
    """A sequence's tokens to its end, known from the start; KV contents follow from them."""

    def __init__(self, sequence, continuation):
        self.tokens = [*sequence.tokens, *continuation]
        assert len(self.tokens) >= sequence.max_length
        self.contents = []
        content = hash(sequence.cache_salt)
        for token in self.tokens:
            content = hash((content, token))
            self.contents.append(content)


class SimulatedDevice:
    """Runs a scheduler's steps and checks each read and write. A step takes a second.

    Where no later step counts on one token, it chooses ``tokens_at_once``, as speculation would.
    """

    def __init__(self, scheduler, *, tokens_at_once=1):
        self.scheduler = scheduler
        self.tokens_at_once = tokens_at_once
        self.now = 0.0
        self.in_flight = deque()  # of a step, and who writes what to which slot
        self._scripts = {}
        self._contents = {}

    def add(self, sequence, continuation):
        sequence.arrived = self.now
        self.scheduler.add(sequence, self.now)
        self._scripts[sequence] = Script(sequence, continuation)

    def launch(self):
        """Schedule a step and let it read and write. Empty: there is nothing to do now."""
        step = self.scheduler.schedule(self.now)
        self._erase()
        writes = {}
        for sequence, start, count, samples, _ in step:
            script = self._scripts[sequence]
            for position in range(start):
                self._read(sequence, position, script)
            for position in range(start, start + count):
                slot = _slot(sequence, position)
                assert self._writer(slot) is None, "two steps write one slot"
                assert slot not in writes, "two sequences write one slot"
                writes[slot] = (sequence, script.contents[position])
            # Masked or not, what is not finite would reach whoever owns the block.
            for block in sequence.block_table:
                slots = range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
                assert all(self._contents.get(slot) is not GARBAGE for slot in slots)
            assert samples == (start + count == sequence.length - samples)
            assert start + count < sequence.max_length, "the last token needs no KV"
            assert not sequence.needs_history or sequence.num_unseen_tokens <= 1
        if step:
            self.in_flight.append((step, writes))
        return step

    def collect(self, not_finite=()):
        """Complete the oldest step; finish what reached its last token."""
        step, writes = self.in_flight.popleft()
        for slot, (sequence, content) in writes.items():
            self._contents[slot] = GARBAGE if sequence in not_finite else content
        sampled = [
            None if sequence in not_finite else self._chosen(sequence, start + count)
            for sequence, start, count, samples, _ in step
            if samples
        ]
        self.now += 1.0
        self.scheduler.complete(step, sampled, self.now)
        for sequence, *_ in step:
            script = self._scripts[sequence]
            assert sequence.tokens == script.tokens[: len(sequence.tokens)]
            if len(sequence.tokens) >= sequence.max_length:
                self.scheduler.finish(sequence)

    def crash(self):
        """Let the oldest step fail, having written anything; return whom it ended."""
        step, writes = self.in_flight.popleft()
        self._contents.update(dict.fromkeys(writes, GARBAGE))
        self.now += 1.0
        return self.scheduler.fail(step)

    def take_back(self):
        """The newest step could not be launched after all."""
        step, _ = self.in_flight.pop()
        self.scheduler.take_back(step)

    def drain(self):
        while self.in_flight:
            self.collect()

    def _chosen(self, sequence, first):
        alone = sequence.num_steps_in_flight == 1
        stop = min(first + (self.tokens_at_once if alone else 1), sequence.max_length)
        return tuple(self._scripts[sequence].tokens[first:stop])

    def _read(self, sequence, position, script):
        slot = _slot(sequence, position)
        writer = self._writer(slot)
        assert writer in {None, sequence}, "read before its step was collected"
        if writer is None:
            assert self._contents.get(slot) == script.contents[position], "wrong content"

    def _writer(self, slot):
        return next((writes[slot][0] for _, writes in self.in_flight if slot in writes), None)

    def _erase(self):
        for block in self.scheduler.pool.take_to_erase():
            for slot in range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE):
                self._contents.pop(slot, None)


def _slot(sequence, position):
    return sequence.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
