"""A device without a model: it knows what every slot of the KV cache must hold.

The KV of a token depends on all tokens before it and on the salt, so a slot's content is a chain of
hashes over both. A step's writes can be read by its own sequences at once, as on a device that runs
steps in order, and by others once the step was collected. Reading anything else fails the test: so
does reading what a refused draft wrote, and what is being loaded from a tier.
"""

import random
from collections import deque

from backend.scheduler.batch import batch_of, note_launched
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for
from backend.scheduler.draft_model import DraftModel
from backend.scheduler.drafts import Drafter, DraftSource, _Choice
from backend.scheduler.tiers import LoadSeconds, Source, TransferReport

GARBAGE = object()
LOADING = object()


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


class RandomDrafter:
    """Proposes up to ``most`` drafts, right ones first and wrong ones behind them, or none."""

    def __init__(self, seed, most=20):
        self.scripts = {}
        self.most = most
        self._random = random.Random(seed)

    model = None

    def is_open(self, num_rows):
        return num_rows == 1 or self._random.random() < 0.8

    def pause(self):
        pass

    def forget(self, sequence):
        pass

    def waiting(self, decoding):
        return {each for each in decoding if each.allows_drafts and self._random.random() < 0.7}

    def propose(self, rows, *, overlapped):
        proposed = {}
        for place, (sequence, start, *_) in enumerate(rows):
            count = self._random.randint(0, self.most)
            has_begun = len(sequence.tokens) > sequence.num_prompt_tokens
            is_known = sequence.num_unseen_tokens == 0 and has_begun
            if is_known and sequence.allows_drafts and count > 0:
                right = self.scripts[sequence].tokens[start + 1 : start + 1 + count]
                num_right = self._random.choice([0, count, self._random.randint(0, count)])
                proposed[place] = (*right[:num_right], *[-2] * (count - num_right))
        return proposed

    def batch(self, step):
        return None

    def verified(self, sequence, start, drafts, right):
        assert 0 <= right <= len(drafts)

    def observe(self, num_rows, num_drafts, num_tokens, seconds, draft_seconds):
        assert num_rows > 0 <= num_drafts
        assert num_tokens <= num_rows + num_drafts


class GuessingDrafter(Drafter):
    """The real one, which takes guesses of a draft model at random and not where they pay."""

    def __init__(self, seed, num_blocks, *, max_model_len=90, most=8):
        super().__init__(
            DraftModel(num_blocks, max_model_len=max_model_len, most=most), lookup=False
        )
        self.scripts = {}
        self.random = random.Random(seed)

    def is_open(self, num_rows):
        return self.random.random() < 0.9

    def pause(self):
        pass

    def _choose(self, sequences, num_rows, *, overlapped):
        chosen = {}
        for sequence in sequences:
            if not sequence.allows_drafts or len(sequence.tokens) == sequence.num_prompt_tokens:
                continue
            room = self.model.room(sequence)
            if self.model.rate(sequence) >= 0 and room and self.random.random() < 0.7:
                count = self.random.randint(1, room)
                chosen[sequence] = _Choice(DraftSource.DRAFT_MODEL, count, 1.0)
        return chosen


class SimulatedDraft:
    """A draft model's KV: each read must find what it computed for the tokens before.

    Its guesses are right up to a random one, some of its outputs are not finite, and some steps
    fail half-way.
    """

    def __init__(self, drafter):
        self._drafter = drafter
        self._contents = {}
        self._tables = {}

    def guess(self, scheduler, step):
        """Return ``step`` with guesses; None: it failed and was taken back."""
        batch = scheduler.draft_batch
        for new in batch.new:
            self._tables[new.slot] = {}
        for slot, start, blocks in batch.appended:
            self._tables[slot] |= dict(enumerate(blocks, start))
        chance = self._drafter.random
        guesses = [self._row(row, step[row.place].sequence) for row in batch.rows]
        if chance.random() < 0.05:
            scheduler.drafts_failed(step, for_good=False)
            return None
        for place, row in enumerate(batch.rows):
            if chance.random() < 0.03:
                guesses[place] = None
                self.erase(step[row.place].sequence.block_table)
        return scheduler.fill(step, guesses, 0.0)

    def erase(self, blocks):
        for block in blocks:
            for slot in range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE):
                self._contents.pop(slot, None)

    def _row(self, row, sequence):
        script = self._drafter.scripts[sequence]
        for position in range(row.start):
            found = self._contents.get(self._slot(sequence, row.slot, position))
            assert found == script.contents[position], "read what it did not compute"
        assert list(row.tokens) == sequence.tokens[row.start :][: len(row.tokens)]
        stop = row.start + len(row.tokens)
        for position in range(row.start, stop):
            self._contents[self._slot(sequence, row.slot, position)] = script.contents[position]
        if not row.num_drafts:
            return ()
        assert stop == len(sequence.tokens)
        right = self._drafter.random.randint(0, row.num_drafts)
        guesses = (*script.tokens[stop : stop + right], *[-2] * row.num_drafts)[: row.num_drafts]
        content = script.contents[stop - 1]
        for position, guess in enumerate(guesses[:-1], stop):
            content = hash((content, guess))
            self._contents[self._slot(sequence, row.slot, position)] = content
        return guesses

    def _slot(self, sequence, slot, position):
        block = self._tables[slot][position // BLOCK_SIZE]
        assert block == sequence.block_table[position // BLOCK_SIZE], "it knows another table"
        return block * BLOCK_SIZE + position % BLOCK_SIZE


class SimulatedDevice:
    """Runs a scheduler's steps and checks each read and write. A step takes a second."""

    def __init__(self, scheduler, drafter=None):
        self.scheduler = scheduler
        self.now = 0.0
        self.in_flight = deque()  # of a step, and who writes what to which slot
        self._scripts = {} if drafter is None else drafter.scripts
        self._draft = None
        if drafter is not None and drafter.model is not None:
            self._draft = SimulatedDraft(drafter)
        self._contents = {}
        self.tiers = SimulatedTiers(self._contents)
        self.states = SimulatedStates(scheduler.cache.snapshots, self._scripts)

    def add(self, sequence, continuation):
        sequence.arrived = self.now
        self.scheduler.add(sequence, self.now)
        self._scripts[sequence] = Script(sequence, continuation)

    def launch(self):
        """Schedule a step and let it read and write. Empty: there is nothing to do now."""
        step = None
        while step is None:
            step = self.scheduler.schedule(self.now)
            self._erase()
            self.tiers.begin(self.scheduler.take_transfers())
            if self.scheduler.draft_batch is not None:
                step = self._draft.guess(self.scheduler, step)
        writes = {}
        for sequence, start, count, samples, drafts in step:
            script = self._scripts[sequence]
            for position in range(start):
                self._read(sequence, position, script)
            contents = script.contents[start : start + count - len(drafts)]
            for draft in drafts:
                contents.append(hash((contents[-1], draft)))
            for position, content in zip(range(start, start + count), contents, strict=True):
                slot = _slot(sequence, position)
                assert self._writer(slot) is None, "two steps write one slot"
                assert slot not in writes, "two sequences write one slot"
                writes[slot] = (sequence, content)
            # Masked or not, what is not finite would reach whoever owns the block.
            for block in sequence.block_table:
                slots = range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
                assert all(self._contents.get(slot) is not GARBAGE for slot in slots)
            assert samples == (start + count - len(drafts) == sequence.length - samples)
            if drafts:
                assert sequence.num_unseen_tokens == sequence.num_steps_in_flight == 1
                assert sequence.allows_drafts
                assert len(sequence.tokens) > sequence.num_prompt_tokens
            assert start + count < sequence.max_length, "the last token needs no KV"
            assert not sequence.needs_history or sequence.num_unseen_tokens <= 1
        if step:
            self.in_flight.append((step, writes))
            self.states.advance(step)
        return step

    def collect(self, not_finite=()):
        """Complete the oldest step; finish what reached its last token."""
        step, writes = self.in_flight.popleft()
        for slot, (sequence, content) in writes.items():
            self._contents[slot] = GARBAGE if sequence in not_finite else content
        self.states.spoil(step, not_finite)
        sampled = [
            None if sequence in not_finite else self._chosen(sequence, start + count, drafts)
            for sequence, start, count, samples, drafts in step
            if samples
        ]
        self.now += 1.0
        self.scheduler.complete(step, sampled, self.now)
        for sequence, _, _, _, drafts in step:
            script = self._scripts[sequence]
            assert sequence.tokens == script.tokens[: len(sequence.tokens)]
            assert len(sequence.tokens) <= sequence.max_length
            generated = sequence.tokens[sequence.num_prompt_tokens :]
            assert sequence.end_token_ids.isdisjoint(generated[:-1]), "it went on behind its end"
            if drafts and sequence.block_table:
                assert len(sequence.block_table) == blocks_for(sequence.num_computed_tokens)
            ended = bool(generated) and generated[-1] in sequence.end_token_ids
            if ended or len(sequence.tokens) >= sequence.max_length:
                self.scheduler.finish(sequence)

    def crash(self):
        """Let the oldest step fail, having written anything; return whom it ended."""
        step, writes = self.in_flight.popleft()
        self._contents.update(dict.fromkeys(writes, GARBAGE))
        self.states.spoil(step, [each.sequence for each in step])
        self.now += 1.0
        return self.scheduler.fail(step)

    def take_back(self):
        """The newest step could not be launched after all."""
        step, _ = self.in_flight.pop()
        self.states.spoil(step, [each.sequence for each in step])  # it may have failed half-way
        self.scheduler.take_back(step)

    def drain(self):
        while self.in_flight:
            self.collect()

    def _chosen(self, sequence, end, drafts):
        chosen = self._scripts[sequence].tokens[end - len(drafts) :]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == chosen[accepted]:
            accepted += 1
        return tuple(chosen[: accepted + 1])

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
            if self._draft is not None:
                self._draft.erase([block])


class SimulatedStates:
    """A recurrent state for each slot, which takes in one token after the other, and snapshots."""

    def __init__(self, snapshots, scripts):
        self._snapshots = snapshots
        self._scripts = scripts
        self._of_slot = {}
        self._saved = {}
        self.num_begun = 0

    def advance(self, step):
        """Let launched rows take in their tokens, as one step after the other does."""
        if self._snapshots is None:
            return
        batch = batch_of(step, self._snapshots.saves_of(step))
        note_launched(step)
        for new in batch.new:
            self._of_slot[new.slot] = None if new.state < 0 else self._saved[new.state]
            self.num_begun += new.state >= 0
        for sequence, start, count, _, _ in step:
            contents, slot = self._scripts[sequence].contents, sequence.slot
            assert self._of_slot[slot] == (contents[start - 1] if start else None), "another state"
            self._of_slot[slot] = contents[start + count - 1]
            for _, position, snapshot in (each for each in batch.saves if each.slot == slot):
                assert start < position <= start + count, "the state does not pass there"
                self._saved[snapshot] = contents[position - 1]

    def spoil(self, step, sequences):
        """What ``step`` made of ``sequences`` is good for nothing."""
        if self._snapshots is None:
            return
        slots = {each.slot for each in sequences}
        self._of_slot.update(dict.fromkeys(slots, GARBAGE))
        for save in self._snapshots.saves_of(step):
            if save.slot in slots:
                self._saved[save.snapshot] = GARBAGE


class SimulatedTiers:
    """What tiers hold, by source and hash; loads end when they are told to."""

    def __init__(self, contents):
        self.held = {source: {} for source in Source}
        self.pending = {}  # load by block
        self.num_saves = self.num_loads = 0
        self._contents = contents  # of the pool, by slot
        self._must_be = {}  # content by hash

    def begin(self, transfers):
        for digest, source, target in transfers.drops:
            content = self.held[source].pop(digest, None)
            if target is not None and content is not None:
                self.held[target][digest] = content
        for block, digest, target in transfers.saves:
            content = tuple(self._contents.get(slot) for slot in _slots(block))
            assert GARBAGE not in content, "what is not finite is saved"
            assert LOADING not in content, "saved before it was loaded"
            assert self._must_be.setdefault(digest, content) == content, "wrong bytes are saved"
            self.held[target][digest] = content
            self.num_saves += 1
        for load in transfers.loads:
            assert load.block not in self.pending, "two loads fill one block"
            self.pending[load.block] = load
            self._contents.update(dict.fromkeys(_slots(load.block), LOADING))

    def end(self, block, *, succeeds=True):
        """End one load; return what is reported of it."""
        _, digest, source = self.pending.pop(block)
        content = self.held[source].get(digest) if succeeds else None
        for slot, each in zip(_slots(block), content or [None] * BLOCK_SIZE, strict=True):
            self._contents[slot] = each
        self.num_loads += content is not None
        loaded = [(block, content is not None)]
        return TransferReport(loaded, timed=[LoadSeconds(source, 1, 0.001)])

    def lose(self, source, digest):
        """Let a save have failed."""
        del self.held[source][digest]
        return TransferReport(lost=[(source, digest)])


def _slots(block):
    return range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)


def _slot(sequence, position):
    return sequence.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
