from gateway.upstream.coalescing.flight import Flight, FlightTable

TABLE = {"linger": 2.0, "linger_bytes": 100}


def leading(table, slot="k", **options):
    flight = Flight(slot, **options)
    table.lead(flight)
    return flight


def follow(table, slot="k", *, most=10, since=0.0):
    return table.follow(slot, most=most, since=since)


def test_the_first_leads_and_the_next_follow():
    table = FlightTable(**TABLE)
    assert follow(table) is None
    flight = leading(table)
    assert follow(table) is flight
    assert follow(table, "other") is None
    assert flight.reading == 2


def test_a_call_without_a_slot_is_followed_by_nobody():
    table = FlightTable(**TABLE)
    flight = leading(table, None)
    assert follow(table, None) is None
    assert table.leave(flight)


def test_the_leader_is_no_follower():
    table = FlightTable(**TABLE)
    leading(table)
    assert follow(table, most=1) is not None
    assert follow(table, most=1) is None
    assert follow(table, most=2) is not None


def test_a_newer_call_takes_the_followers_that_come():
    table = FlightTable(**TABLE)
    older, newer = leading(table), leading(table)
    assert follow(table) is newer
    table.land(older, size=1, now=1.0)
    assert follow(table) is newer
    assert table.leave(older) is False  # it has landed


def test_the_last_reader_ends_the_call_and_nobody_joins_it_then():
    table = FlightTable(**TABLE)
    flight = leading(table)
    follow(table)
    assert not table.leave(flight)
    assert table.leave(flight)
    assert follow(table) is None
    assert not table.under_way("k")


def test_a_complete_answer_outlives_its_readers():
    table = FlightTable(**TABLE)
    flight = leading(table)
    flight.complete = True
    assert not table.leave(flight)
    assert follow(table) is flight


def test_an_unattended_call_outlives_its_followers():
    table = FlightTable(**TABLE)
    flight = leading(table, attended=False)
    assert flight.reading == 0
    assert follow(table) is flight
    assert not table.leave(flight)
    assert table.under_way("k")


def test_what_landed_is_joined_only_by_who_began_before():
    table = FlightTable(**TABLE)
    flight = leading(table)
    table.land(flight, size=1, now=5.0)
    assert not table.under_way("k")
    assert follow(table, since=4.9) is flight
    assert follow(table, since=5.1) is None


def test_what_landed_is_let_go_of():
    table = FlightTable(**TABLE)
    for slot, now in (("a", 1.0), ("b", 2.0)):
        table.land(leading(table, slot), size=1, now=now)
    assert table.forget(2.5) == 3.0
    assert table.forget(3.0) == 4.0
    assert follow(table, "a") is None
    assert follow(table, "b") is not None
    assert table.forget(9.0) is None
    assert follow(table, "b") is None


def test_what_lingers_is_bounded_in_bytes():
    table = FlightTable(**TABLE)
    for slot in "abc":
        table.land(leading(table, slot), size=40, now=1.0)
    assert follow(table, "a") is None
    assert follow(table, "b") is not None
    assert follow(table, "c") is not None
    table.land(leading(table, "d"), size=101, now=1.0)
    assert follow(table, "d") is None
