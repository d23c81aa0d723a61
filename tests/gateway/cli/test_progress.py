"""Progress: on a terminal alone, and gone when the work is done."""

import asyncio

import pytest

from gateway.cli.progress import for_each, progress
from gateway.cli.terminal import FailedError, say


def test_elsewhere_nothing_is_shown(capsys):
    with progress("reading", 10) as note:
        note(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("columns", [40, 120])
def test_a_bar_is_shown_and_removed(terminal, columns):
    with terminal(columns) as screen, progress("reading", 1234) as note:
        note(1000)
    assert "reading" in screen.text
    assert "1,000 of 1,234" in screen.text
    assert screen.raw.rstrip().endswith("end of output")
    assert "\x1b[2K" in screen.raw


def test_messages_stand_above_the_bar(terminal):
    with terminal(80) as screen, progress("reading") as note:
        note(1)
        say("log.jsonl:3: expected JSON")
        screen.wait_for("refrain: log.jsonl:3: expected JSON\n")


def test_what_is_done_quickly_shows_nothing(terminal, monkeypatch):
    monkeypatch.undo()
    with terminal(80) as screen, progress("reading"):
        pass
    assert screen.text == "end of output\n"


async def test_each_item_is_counted(terminal):
    done = []

    async def work(item):
        done.append(item)
        await asyncio.sleep(0)

    with terminal(80) as screen:
        await for_each(range(5), work, at_a_time=2, what="scoring pairs")
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert "scoring pairs" in screen.text
    assert "5 of 5" in screen.text


async def test_a_failure_ends_the_bar(terminal):
    async def work(_item):
        raise FailedError("no")

    with terminal(80) as screen, pytest.raises(FailedError, match="no"):
        await for_each([1], work, at_a_time=1, what="scoring pairs")
    assert "0 of 1" in screen.text
