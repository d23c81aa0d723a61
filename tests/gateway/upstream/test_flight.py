from gateway.upstream.sharing.flight_table import Flight, FlightTable

TABLE = {"linger": 2.0, "linger_bytes": 100}


def leading(table, slot="k", **options):
    flight = Flight(slot, **options)
    table.lead(flight)
    return flight


def follow(table, slot="k", *, most=10, since=0.0):
    return table.follow(slot, most=most, since=since)


def test_what_landed_is_let_go_of_at_once_if_no_request_can_need_it():
    table = FlightTable(**TABLE)
    table.land(leading(table), size=1, now=1.0)
    assert follow(table) is None
    assert table.forget(1.0) is None


def test_what_landed_is_let_go_of():
    table = FlightTable(**TABLE)
    table.looking = 1
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
    table.looking = 1
    for slot in "abc":
        table.land(leading(table, slot), size=40, now=1.0)
    assert follow(table, "a") is None
    assert follow(table, "b") is not None
    assert follow(table, "c") is not None
    table.land(leading(table, "d"), size=101, now=1.0)
    assert follow(table, "d") is None
