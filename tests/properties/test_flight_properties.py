"""The coalescing table under any order of leading, following, leaving and landing."""

from examples import some
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.upstream.sharing.flight_table import Flight, FlightTable

LINGER = 10.0
LINGER_BYTES = 100


class CoalescingTable(RuleBasedStateMachine):
    """Readers come and go; beside the table, a plain record of who reads what."""

    flights = Bundle("flights")
    readers = Bundle("readers")

    def __init__(self) -> None:
        super().__init__()
        self.table: FlightTable[Flight] = FlightTable(linger=LINGER, linger_bytes=LINGER_BYTES)
        self.now = 0.0
        self.newest: dict[str, Flight] = {}
        self.reading: dict[Flight, int] = {}
        self.cancelled: set[Flight] = set()
        self.sizes: dict[Flight, int] = {}

    def joinable(self, slot: str, since: float) -> bool:
        """Say by the record alone whether there is a flight to follow, but for its size."""
        flight = self.newest.get(slot)
        return flight is not None and (flight.landed_at is None or flight.landed_at >= since)

    @rule(target=flights, slot=st.sampled_from("ab"), attended=st.booleans())
    def begin(self, slot: str, attended: bool) -> Flight:
        flight = Flight(slot, attended=attended)
        self.table.lead(flight)
        self.newest[slot] = flight
        self.reading[flight] = 1 if attended else 0
        return flight

    @rule(target=readers, flight=flights)
    def the_leader(self, flight: Flight) -> Flight | None:
        # Each flight's leader leaves at most once; who it is does not matter to the table.
        return flight if flight.attended else None

    @rule(
        target=readers,
        slot=st.sampled_from("abc"),
        most=st.integers(0, 3),
        began=st.floats(0, 20),
    )
    def ask(self, slot: str, most: int, began: float) -> Flight | None:
        since = max(0.0, self.now - began)
        flight = self.table.follow(slot, most=most, since=since)
        if flight is None:
            newest = self.newest.get(slot)
            full = newest is not None and self.reading[newest] > most
            let_go = newest is not None and newest.landed_at is not None
            assert full or let_go or not self.joinable(slot, since)
            return None
        assert flight is self.newest[slot]
        assert self.joinable(slot, since)
        assert self.reading[flight] <= most
        self.reading[flight] += 1
        return flight

    @rule(flight=consumes(readers))
    def leave(self, flight: Flight | None) -> None:
        if flight is None or self.reading[flight] == 0:
            return
        self.reading[flight] -= 1
        cancel = self.table.leave(flight)
        alive = self.reading[flight] or flight.complete or not flight.attended
        assert cancel is not bool(alive)
        if cancel:
            self.cancelled.add(flight)
            self.forget_newest(flight)

    @rule(flight=flights)
    def the_upstream_has_sent_all(self, flight: Flight) -> None:
        if flight not in self.cancelled:
            flight.complete = True

    @rule(flight=flights, size=st.integers(0, 120))
    def land(self, flight: Flight, size: int) -> None:
        if flight in self.cancelled or flight.landed_at is not None:
            return
        self.table.land(flight, size=size, now=self.now)
        assert flight.landed_at == self.now

    @rule(flight=flights)
    def close(self, flight: Flight) -> None:
        self.table.close(flight)
        self.forget_newest(flight)

    @rule(number=st.integers(0, 1))
    def requests_come_or_join(self, number: int) -> None:
        self.table.looking = number

    @rule(seconds=st.floats(0, 15))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def forget(self) -> None:
        again = self.table.forget(self.now)
        assert again is None or self.now < again <= self.now + LINGER
        for slot in "ab":
            flight = self.newest.get(slot)
            if flight is not None and flight.landed_at is not None:
                gone = flight.landed_at + LINGER <= self.now
                assert not gone or self.table.follow(slot, most=99, since=0.0) is None

    def forget_newest(self, flight: Flight) -> None:
        if flight.slot is not None and self.newest.get(str(flight.slot)) is flight:
            del self.newest[str(flight.slot)]

    @invariant()
    def the_table_counts_as_the_record_does(self) -> None:
        for flight, reading in self.reading.items():
            assert flight.reading == reading

    @invariant()
    def what_lingers_is_bounded(self) -> None:
        held = [flight for flight in self.reading if flight in self.table.landed]
        assert sum(flight.held_bytes for flight in held) <= LINGER_BYTES
        assert self.table._landed_bytes == sum(flight.held_bytes for flight in held)

    @invariant()
    def nothing_cancelled_can_be_joined(self) -> None:
        assert not self.cancelled & set(self.table._joinable.values())

    @invariant()
    def under_way_is_what_has_not_landed(self) -> None:
        for slot in "abc":
            flight = self.newest.get(slot)
            expected = flight if flight is not None and flight.landed_at is None else None
            assert self.table.under_way(slot) is expected


CoalescingTable.TestCase.settings = settings(max_examples=some(100), stateful_step_count=40)
TestCoalescingTable = CoalescingTable.TestCase
