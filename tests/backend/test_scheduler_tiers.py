"""Blocks beyond the pool: what tiers hold, when a load pays, and days of a simulated device."""

import random

import pytest
from simulated_device import SimulatedDevice

from backend.scheduler.block_pool import BLOCK_SIZE, BlockPool
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.request import Priority
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import Sequence, SequenceStatus
from backend.scheduler.tiers import Drop, Load, LoadSeconds, Save, Source, Tiers, TransferReport

HOST, DISK = Source.HOST, Source.DISK
EVENTS = 100_000
_OVER = {SequenceStatus.ENDING, SequenceStatus.FINISHED}


def digests(count, first=0):
    return [b"%032d" % number for number in range(first, first + count)]


def filled(host, disk, count):
    """Return tiers that saved so many blocks, one in each step."""
    tiers = Tiers(host_blocks=host, disk_blocks=disk)
    for block, digest in enumerate(digests(count), 1):
        tiers.save(block, digest)
        tiers.take()
    return tiers


def test_what_leaves_host_memory_goes_to_disk_and_then_nowhere():
    tiers = filled(2, 2, 4)
    assert [tiers.source_of(each) for each in digests(4)] == [DISK, DISK, HOST, HOST]
    tiers.save(9, digests(5)[4])
    first, _, third, _, fifth = digests(5)
    transfers = tiers.take()
    assert transfers.drops == (Drop(first, DISK), Drop(third, HOST, DISK))
    assert transfers.saves == (Save(9, fifth, HOST),)
    assert not tiers.take()


def test_without_host_memory_blocks_go_to_disk_at_once():
    tiers = Tiers(host_blocks=0, disk_blocks=1)
    tiers.save(3, b"a")
    assert tiers.take().saves == (Save(3, b"a", DISK),)


def test_what_a_tier_has_is_not_saved_again_and_is_the_last_to_go():
    tiers = filled(2, 0, 2)
    first, second, third = digests(3)
    tiers.save(7, first)
    assert not tiers.take()
    tiers.save(8, third)
    assert tiers.take().drops == (Drop(second, HOST),)


def test_blocks_from_elsewhere_do_not_displace_one_another_nor_what_is_loaded():
    tiers = filled(3, 0, 3)
    first, second, _, *new = digests(6)
    tiers.reserve([first, second])
    assert tiers.adopt([second, *new]) == [1]
    assert [tiers.source_of(each) for each in new] == [HOST, None, None]
    assert tiers.adopt(new) == []
    tiers.check_integrity()


def test_a_step_saves_no_more_than_there_is_room_for():
    tiers = Tiers(host_blocks=2, disk_blocks=0)
    for block, digest in enumerate(digests(3)):
        tiers.save(block, digest)
    assert [each.digest for each in tiers.take().saves] == digests(2)
    assert tiers.source_of(digests(3)[2]) is None


def test_what_is_loaded_stays_until_the_load_has_ended():
    tiers = filled(2, 0, 2)
    first, second, third, fourth = digests(4)
    assert tiers.reserve([first]) == [HOST]
    tiers.load(5, first, HOST)
    assert tiers.take().loads == (Load(5, first, HOST),)
    tiers.save(6, third)
    tiers.save(7, fourth)
    assert tiers.take().drops == (Drop(second, HOST),)
    assert tiers.loaded(first, HOST, succeeded=True)
    tiers.save(7, fourth)
    assert tiers.take().drops == (Drop(first, HOST),)


def test_a_failed_load_is_forgotten_and_a_forgotten_one_not_used():
    tiers = filled(2, 0, 2)
    first, second = digests(2)
    tiers.reserve([first, second])
    tiers.forget([second])
    assert not tiers.loaded(first, HOST, succeeded=False)
    assert not tiers.loaded(second, HOST, succeeded=True)
    assert tiers.worth_loading([first]) == tiers.worth_loading([second]) == []
    assert set(tiers.take().drops) == {Drop(first, HOST), Drop(second, HOST)}
    assert tiers.figures()[HOST].failed_loads == 1


def test_a_failed_load_frees_the_room_that_another_load_reads_which_is_not_used():
    tiers = filled(2, 0, 2)
    [digest] = digests(1)
    assert tiers.reserve([digest]) == tiers.reserve([digest]) == [HOST]
    assert not tiers.loaded(digest, HOST, succeeded=False)
    assert tiers.take().drops == (Drop(digest, HOST),)
    assert not tiers.loaded(digest, HOST, succeeded=True)


@pytest.mark.parametrize(("a_load", "loaded"), [(0.5, 4), (1.5, 0)])
def test_a_load_that_costs_more_than_it_saves_is_not_made(a_load, loaded):
    tiers = filled(4, 0, 4)
    assert len(tiers.worth_loading(digests(4))) == 4, "what was never measured counts as good"
    tiers.observe_prefill(BLOCK_SIZE * 10, 10.0)
    tiers.observe_load(LoadSeconds(HOST, 10, 10 * a_load))
    assert len(tiers.worth_loading(digests(5))) == loaded


def test_blocks_of_a_slow_source_are_loaded_for_the_sake_of_fast_ones_behind_them():
    tiers = filled(2, 2, 4)
    tiers.observe_prefill(BLOCK_SIZE * 10, 10.0)
    tiers.observe_load(LoadSeconds(HOST, 10, 1.0))
    tiers.observe_load(LoadSeconds(DISK, 10, 15.0))
    assert tiers.worth_loading(digests(4)) == [DISK, DISK, HOST, HOST]
    assert tiers.worth_loading(digests(2)) == []


def test_a_source_that_was_slow_is_tried_again_now_and_then():
    tiers = filled(1, 0, 1)
    tiers.observe_prefill(BLOCK_SIZE * 10, 1.0)
    tiers.observe_load(LoadSeconds(HOST, 1, 9.0))
    assert sum(bool(tiers.reserve(digests(1))) for _ in range(64)) == 2


def test_the_disk_begins_with_what_it_had_and_is_told_what_it_lacks():
    tiers = Tiers(host_blocks=2, disk_blocks=2, on_disk=[b"a", b"b"])
    assert tiers.worth_loading([b"a", b"b"]) == [DISK, DISK]
    tiers.save(1, b"c")
    assert tiers.to_persist([(b"d", 4), (b"a", 5)]) == [(b"d", 4), (b"c", None)]


class Day:
    """Clients, an engine's loop and tiers that fail now and then; all from one seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        pick = self.random.randint
        pool = BlockPool(pick(3, 16))
        self.tiers = Tiers(host_blocks=pick(0, 24), disk_blocks=pick(0, 24))
        self.cache = PrefixCache(pool, tiers=self.tiers)
        self.scheduler = Scheduler(
            pool, max_num_seqs=4, max_tokens_per_step=40, cache=self.cache, max_waiting=10
        )
        self.device = SimulatedDevice(self.scheduler)
        self.open = []
        self.arrivals = self.events = 0

    def event(self):
        self.events += 1
        chance = self.random.random()
        tiers = self.device.tiers
        if tiers.pending and chance < 0.25:
            block = self.random.choice(list(tiers.pending))
            self.scheduler.take_in(tiers.end(block, succeeds=self.random.random() < 0.9))
        elif chance < 0.45:
            self.arrive()
        elif self.open and chance < 0.48:
            self.scheduler.finish(self.open.pop(self.random.randrange(len(self.open))))
        elif chance < 0.49:
            self.lose_save()
        else:
            self.step(chance)
        self.open = [each for each in self.open if each.status not in _OVER]

    def arrive(self):
        pick = self.random.randint
        document, num_blocks = pick(0, 5), self.scheduler.pool.num_blocks
        most = (num_blocks - 1) * BLOCK_SIZE
        prompt = [document] * min(pick(0, 140), most - 40) + [10 + pick(0, 2)] * pick(1, 20)
        answer = pick(1, 20)
        if self.scheduler.num_waiting < 10 and len(prompt) + answer <= most:
            salt = self.random.choice(["", "", "other"])
            length = len(prompt) + answer
            priority = self.random.choice(list(Priority))
            sequence = Sequence(self.arrivals, prompt, length, priority, cache_salt=salt)
            self.arrivals += 1
            self.device.add(sequence, [20] * answer)
            self.open.append(sequence)

    def lose_save(self):
        for source, held in self.device.tiers.held.items():
            if held:
                digest = self.random.choice(list(held))
                self.scheduler.take_in(self.device.tiers.lose(source, digest))
                return

    def step(self, chance):
        in_flight = self.device.in_flight
        if len(in_flight) < 2 and chance < 0.8:
            step = self.device.launch()
            if step and chance < 0.5:
                self.device.take_back()
            self.scheduler.check_integrity()
        elif in_flight and chance < 0.82:
            self.device.crash()
        elif in_flight:
            sampling = [each.sequence for each in in_flight[0][0] if each.samples]
            spoilt = self.random.random() < 0.02
            self.device.collect(set(sampling[:1]) if spoilt else ())


def test_no_block_is_read_before_its_load_nor_holds_another_content_in_many_events():
    """The device checks each read, each save and each load; salts keep their blocks apart."""
    saves = loads = events = seed = 0
    while events < EVENTS:
        day = Day(seed)
        for _ in range(4_000):
            day.event()
        seed, events = seed + 1, events + day.events
        saves, loads = saves + day.device.tiers.num_saves, loads + day.device.tiers.num_loads
    assert saves > EVENTS / 50
    assert loads > EVENTS / 50


def a_prompt_that_comes_back():
    """Return a device, and a sequence that was added whose blocks another one pushed out."""
    pool = BlockPool(3)
    cache = PrefixCache(pool, tiers=Tiers(host_blocks=8, disk_blocks=0))
    scheduler = Scheduler(pool, max_num_seqs=2, max_tokens_per_step=64, cache=cache)
    device = SimulatedDevice(scheduler)
    for number, token in enumerate((1, 2)):
        device.add(Sequence(number, [token] * 48, 49), [5])
        device.launch()
        device.collect()
    back = Sequence(2, [1] * 48, 49)
    device.add(back, [5])
    return device, back


def test_a_load_that_is_pending_when_its_sequence_ends_keeps_the_block_from_others():
    device, back = a_prompt_that_comes_back()
    scheduler, cache = device.scheduler, device.scheduler.cache
    pool = cache.pool
    assert device.launch() == ()
    assert len(device.tiers.pending) == 2
    assert scheduler.has_work
    scheduler.finish(back)
    assert (back.status, pool.num_used) == (SequenceStatus.ENDING, 3)
    for block in list(device.tiers.pending):
        scheduler.take_in(device.tiers.end(block))
    assert (back.status, pool.num_used) == (SequenceStatus.FINISHED, 0)
    assert len(cache.match_prefix(back.block_hashes, 48)) == 2
    assert not scheduler.has_work


def test_what_was_forgotten_while_it_was_loaded_is_erased_and_computed():
    device, back = a_prompt_that_comes_back()
    scheduler, cache = device.scheduler, device.scheduler.cache
    pool, tiers = cache.pool, cache.tiers
    device.launch()
    first, second = device.tiers.pending
    tiers.forget([device.tiers.pending[second].digest])
    reports = [device.tiers.end(first), device.tiers.end(second)]
    for report in reports:
        scheduler.take_in(report)
    assert back.num_computed_tokens == 16
    assert pool.take_to_erase() == [second]
    assert device.launch()
    device.collect()
    assert back.status is SequenceStatus.FINISHED


def test_what_was_not_finite_vanishes_from_the_tiers_too():
    pool = BlockPool(6)
    tiers = Tiers(host_blocks=8, disk_blocks=0)
    scheduler = Scheduler(
        pool, max_num_seqs=2, max_tokens_per_step=64, cache=PrefixCache(pool, tiers=tiers)
    )
    device = SimulatedDevice(scheduler)
    for number, token in enumerate((1, 2)):
        device.add(Sequence(number, [token] * 80, 81), [5])
        while scheduler.has_work:
            device.launch()
            device.collect()
    bad = Sequence(2, [1] * 80, 81)
    device.add(bad, [5])
    device.launch()
    assert device.tiers.pending
    for block in list(device.tiers.pending):
        scheduler.take_in(device.tiers.end(block))
    device.launch()
    device.collect({bad})
    assert [tiers.source_of(each) for each in bad.block_hashes[1:6]] == [None] * 5
    device.tiers.begin(tiers.take())
    assert not set(device.tiers.held[HOST]) & set(bad.block_hashes)


def test_a_save_that_failed_is_not_found():
    tiers = filled(2, 0, 1)
    pool = BlockPool(2)
    scheduler = Scheduler(
        pool, max_num_seqs=1, max_tokens_per_step=8, cache=PrefixCache(pool, tiers=tiers)
    )
    scheduler.take_in(TransferReport(lost=[(HOST, digests(1)[0])]))
    assert tiers.source_of(digests(1)[0]) is None
    assert tiers.take().drops == (Drop(digests(1)[0], HOST),), "a later save may have succeeded"
    assert tiers.figures()[HOST].failed_saves == 1
