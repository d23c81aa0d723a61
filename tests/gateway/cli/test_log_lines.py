"""Log lines that nobody reads are dropped and counted; the others are written in order."""

import filecmp
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli.process import log_lines

ROOT = Path(__file__).parents[3]
LAYOUT = logging.Formatter("%(levelname)s %(message)s")


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    os.close(read)


def logger_to(handler: logging.Handler) -> Callable[[str], None]:
    logger = logging.Logger("test")  # noqa: LOG001 - not known to other tests
    logger.addHandler(handler)
    return logger.info


def read_all(descriptor: int) -> list[str]:
    with os.fdopen(os.dup(descriptor), encoding="utf-8") as lines:
        return lines.read().splitlines()


def test_lines_are_written_in_order_and_the_last_ones_at_the_end(pipe):
    read, write = pipe
    handler = log_lines.QueuedLines(LAYOUT, write)
    log = logger_to(handler)
    for number in range(100):
        log(f"line {number} \udc80")
    handler.close()
    os.close(write)
    assert read_all(read) == [f"INFO line {number} \\udc80" for number in range(100)]


def test_where_nobody_reads_lines_are_dropped_and_counted(pipe, monkeypatch):
    monkeypatch.setattr(log_lines, "MOST_LINES", 10)
    read, write = pipe
    handler = log_lines.QueuedLines(LAYOUT, write)
    log = logger_to(handler)
    # One line fills the pipe, so that the writer waits in the middle of it.
    log("x" * 200_000)
    for number in range(50):
        log(f"line {number}")
    told = ""
    with os.fdopen(os.dup(read), encoding="utf-8") as lines:
        while "dropped" not in told:
            told = lines.readline()
    handler.close()
    os.close(write)
    dropped = int(told.split()[1])
    assert told == f"WARNING {dropped} log lines were dropped: nobody read the log in time\n"
    assert 39 <= dropped <= 41


def test_the_end_does_not_wait_for_a_reader_that_never_comes(pipe, monkeypatch):
    monkeypatch.setattr(log_lines, "LAST_SECONDS", 0.01)
    read, write = pipe
    handler = log_lines.QueuedLines(LAYOUT, write)
    logger_to(handler)("x" * 200_000)
    handler.close()
    while len(os.read(read, 1 << 20)) == 1 << 20:
        pass


AT = 1_796_054_531.123


def record_of(message: str, **attributes: object) -> logging.LogRecord:
    given = {"name": "gateway.upstream", "levelname": "WARNING", "msg": message}
    return logging.makeLogRecord({**given, "created": AT, "msecs": 123.0, **attributes})


def test_the_kind_of_an_event_is_for_programs_alone():
    record = record_of("ready: base URL http://h/v1", fields={"event": "gateway"})
    assert log_lines.TextFormatter().format(record).endswith("base URL http://h/v1")
    assert json.loads(log_lines.JsonFormatter().format(record))["event"] == "gateway"


def test_a_line_for_people_has_date_zone_level_fields_and_request():
    formatter = log_lines.TextFormatter(lambda: "mine-1")
    line = formatter.format(record_of("it left", fields={"status": 502}))
    assert line == (
        "2026-11-30T16:02:11.123Z WARNING gateway.upstream: it left status=502 [mine-1]"
    )
    assert log_lines.TextFormatter().format(record_of("it left")).endswith(": it left")


@pytest.mark.parametrize("value", ["a b", "a\nb", 'a"b', "a=b", "", "\u00e4"])
def test_a_text_that_is_no_word_is_quoted(value):
    line = log_lines.TextFormatter().format(record_of("request", fields={"model": value}))
    assert line.endswith(f": request model={json.dumps(value)}")


def test_a_line_for_programs_is_one_object():
    formatter = log_lines.JsonFormatter(lambda: "mine-1")
    line = formatter.format(record_of('it "left"\n\udc80', fields={"status": 502}))
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-11-30T16:02:11.123Z",
        "level": "warning",
        "logger": "gateway.upstream",
        "message": 'it "left"\n\udc80',
        "request_id": "mine-1",
        "status": 502,
    }
    assert "request_id" not in json.loads(log_lines.JsonFormatter().format(record_of("it left")))


@pytest.mark.parametrize("form", [log_lines.TextFormatter, log_lines.JsonFormatter])
def test_what_exceptions_say_is_not_written(pipe, form):
    read, write = pipe
    handler = log_lines.QueuedLines(form(), write)
    logger = logging.Logger("test")  # noqa: LOG001 - not known to other tests
    logger.addHandler(handler)
    try:
        int("1secret")
    except ValueError:
        logger.exception("it failed")
    handler.close()
    os.close(write)
    written = read_all(read)
    if form is log_lines.JsonFormatter:
        [line] = written
        written = ["it failed", *json.loads(line)["exception"].splitlines()]
    assert written[0].endswith("it failed")
    assert "in test_what_exceptions_say_is_not_written" in "".join(written)
    assert written[-1] == "ValueError"
    assert "invalid literal" not in "".join(written)


@pytest.mark.parametrize("form", [log_lines.TextFormatter, log_lines.JsonFormatter])
def test_the_engine_quotes_its_errors(form):
    error = ValueError("no memory on the device")
    line = form(quotes_errors=True).format(
        record_of("it failed", exc_info=(ValueError, error, None))
    )
    assert "ValueError: no memory on the device" in line


@pytest.mark.parametrize(
    ("form", "on_terminal", "expected"),
    [
        ("auto", True, log_lines.TextFormatter),
        ("auto", False, log_lines.JsonFormatter),
        ("text", False, log_lines.TextFormatter),
        ("json", True, log_lines.JsonFormatter),
    ],
)
def test_the_form_depends_on_the_terminal_unless_it_is_set(
    monkeypatch, form, on_terminal, expected
):
    root = logging.Logger("root")  # noqa: LOG001 - in place of the real one
    monkeypatch.setattr(log_lines.logging, "getLogger", lambda: root)
    monkeypatch.setattr(log_lines.os, "isatty", lambda descriptor: on_terminal)
    log_lines.log_to_stderr(form)
    [handler] = root.handlers
    handler.close()
    assert type(handler.formatter) is expected


@pytest.mark.parametrize("package", ["backend", "embeddings"])
def test_the_packages_log_alike(package):
    # They may not import one another.
    mine, theirs = ROOT / "gateway/cli/process/log_lines.py", ROOT / package / "log_lines.py"
    assert filecmp.cmp(mine, theirs, shallow=False)
