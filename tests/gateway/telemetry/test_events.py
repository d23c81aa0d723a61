"""The list of events: which log lines are in it, its bounds, and what operators did."""

import logging
import stat

import orjson
import pytest
from lock_holder import lock_held

from gateway.cache.append_files import previous_file
from gateway.telemetry.events import (
    AUDIT_FILE,
    EVENTS_FILE,
    MAX_BYTES,
    MOST_EVENTS,
    SAME_SECONDS,
    EventList,
    event_log,
)

log = logging.getLogger("gateway.cache.example")


@pytest.fixture(autouse=True)
def level(caplog):
    caplog.set_level(logging.INFO, "gateway")


def event(kind):
    return {"fields": {"event": kind}}


def write(folder, *lines):
    (folder / EVENTS_FILE).write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def line(at, text="store: answers again", kind="store", level="info"):
    return {"time": float(at), "level": level, "event": kind, "text": text}


async def texts(folder):
    return [each["text"] for each in await EventList(folder).latest()]


async def test_log_lines_with_an_event_are_in_the_list_and_no_others(tmp_path):
    with event_log(tmp_path):
        log.warning("store: not used: %s", "no answer", extra=event("store"))
        log.warning("an answer was not stored")
        log.info("request", extra={"fields": {"path": "/v1/models"}})
        log.info("store: answers again", extra=event("store"))
    log.warning("after its end", extra=event("store"))
    newest, oldest = await EventList(tmp_path).latest()
    assert (newest["text"], newest["level"]) == ("store: answers again", "info")
    assert (oldest["text"], oldest["level"]) == ("store: not used: no answer", "warning")
    assert newest["time"] >= oldest["time"]
    assert stat.S_IMODE((tmp_path / EVENTS_FILE).stat().st_mode) == 0o600


async def test_the_list_and_its_file_are_bounded(tmp_path):
    with event_log(tmp_path):
        for number in range(1000):
            log.warning("%d %s", number, "x" * 2000, extra=event("store"))
    for file in (tmp_path / EVENTS_FILE, previous_file(tmp_path / EVENTS_FILE)):
        assert file.stat().st_size <= MAX_BYTES
    found = await texts(tmp_path)
    assert [each.split()[0] for each in found[:2]] == ["999", "998"]
    assert len(found) == MOST_EVENTS


async def test_the_file_before_is_read_too(tmp_path):
    write(tmp_path, line(1, "old"))
    file = tmp_path / EVENTS_FILE
    file.rename(previous_file(file))
    assert await texts(tmp_path) == ["old"]
    write(tmp_path, line(2, "new"))
    assert await texts(tmp_path) == ["new", "old"]


async def test_a_file_that_cannot_be_written_delays_nothing_and_is_written_later(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("gateway.telemetry.events._LOCK_SECONDS", 0.01)
    with lock_held(tmp_path / EVENTS_FILE), event_log(tmp_path):
        for _ in range(100):
            log.warning("lost", extra=event("store"))
    assert await texts(tmp_path) == []
    with event_log(tmp_path):
        log.warning("kept", extra=event("store"))
    assert await texts(tmp_path) == ["kept"]


async def test_what_several_workers_see_is_one_event_and_what_happens_again_is_another(tmp_path):
    gone, back = "store: not used", "store: answers again"
    write(
        tmp_path,
        line(1000, gone),
        line(1001, "policy reloaded", "policy"),
        line(1010, gone),
        line(1020, back),
        line(1021, back),
        line(1030, gone),
        line(1030 + SAME_SECONDS + 1, gone),
    )
    found = await EventList(tmp_path).latest()
    assert [(each["time"], each["text"], each["times"]) for each in found] == [
        (1030 + SAME_SECONDS + 1, gone, 1),
        (1030, gone, 1),
        (1020, back, 2),
        (1001, "policy reloaded", 1),
        (1000, gone, 2),
    ]
    assert found[-1]["until"] == 1010


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (
            {"action": "purge", "asked": {"rule": "prices", "dry_run": False}}
            | {"result": {"dry_run": False, "entries": 12, "bytes": 900}},
            "an operator purged entries (rule prices, entries: 12)",
        ),
        (
            {"action": "wrong", "asked": {"entry": "ab" * 32}, "result": {"evicted": True}},
            f"an operator reported a wrong hit (entry {'ab' * 8}, evicted)",
        ),
        (
            {"action": "wrong", "asked": {"entry": "ab" * 32}, "result": {"evicted": False}},
            f"an operator reported a wrong hit (entry {'ab' * 8}, not evicted)",
        ),
        (
            {"action": "policy", "asked": {"sha256": "ab" * 32}}
            | {"result": {"sha256": "cd" * 32, "bytes": 9}},
            f"an operator saved a policy (sha256 {'cd' * 8})",
        ),
        ({"action": "policy", "asked": {}, "result": {"bytes": 9}}, "an operator saved a policy"),
        ({"action": "purge", "asked": {}, "result": {"dry_run": True, "entries": 12}}, None),
        ({"action": "purge", "asked": {"dry_run": False}}, None),
        ({"action": "audit", "asked": {}, "result": {"scanned": 9, "purged": 0}}, None),
        ({"action": "show", "asked": {"key": "ab" * 32}}, None),
        ({"action": "explain", "asked": {}, "result": {}}, None),
        ({"action": 7}, None),
    ],
)
async def test_what_operators_changed_is_in_the_list(done, text, tmp_path):
    (tmp_path / AUDIT_FILE).write_bytes(orjson.dumps({"time": 1000.5, "peer": None, **done}))
    assert await texts(tmp_path) == ([] if text is None else [text])


async def test_half_a_line_and_other_lines_are_passed_over(tmp_path):
    data = b'7}\n[]\n{"time": "x"}\n' + orjson.dumps(line(1, "whole")) + b'\n{"time": 2'
    (tmp_path / EVENTS_FILE).write_bytes(data)
    assert await texts(tmp_path) == ["whole"]


async def test_a_list_is_read_again_once_a_file_has_changed(tmp_path):
    events = EventList(tmp_path)
    assert await events.latest() == []
    write(tmp_path, line(1, "first"))
    assert [each["text"] for each in await events.latest()] == ["first"]
    write(tmp_path, line(1, "first"), line(2, "second"))
    assert [each["text"] for each in await events.latest()] == ["second", "first"]


async def test_a_line_with_half_a_character_is_in_the_list_and_later_ones_too(
    tmp_path, monkeypatch
):
    # A report of tests that run side by side cannot hold such a line.
    monkeypatch.setattr(logging.getLogger("gateway"), "propagate", False)
    with event_log(tmp_path):
        log.info("keys: %s reloaded", "/etc/k\udce9ys", extra=event("keys"))
        log.info("store: answers again", extra=event("store"))
    assert await texts(tmp_path) == ["store: answers again", "keys: /etc/k\\udce9ys reloaded"]
