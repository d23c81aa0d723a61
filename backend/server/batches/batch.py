"""A batch as a value: its states, the lines of its input, the lines of its results.

Shapes and states are OpenAI's: https://platform.openai.com/docs/api-reference/batch
"""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import IO, Any

import orjson

from backend.server.body import parse_body
from backend.server.protocol.errors import ApiError

MOST_LINES = 50_000
MAX_FILE_BYTES = 200 * 1000 * 1000
"""Both are OpenAI's."""
MAX_LINE_BYTES = 16 * 1024 * 1024
"""As much as a request over HTTP may have."""
_MAX_CUSTOM_ID = 512

_NEXT: Mapping[str, frozenset[str]] = {
    "validating": frozenset({"in_progress", "failed", "cancelling"}),
    "in_progress": frozenset({"finalizing", "failed", "expired", "cancelling"}),
    "finalizing": frozenset({"completed"}),
    "cancelling": frozenset({"cancelled"}),
}
STATUSES = (*_NEXT, "completed", "failed", "expired", "cancelled")

_WINDOW = re.compile(r"([1-9][0-9]{0,3})([mhd])", re.ASCII)
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
_RESULT_ID = re.compile(r"batch_req_[0-9a-f]{24}([0-9a-f]{6})")


class StateError(Exception):
    """A batch cannot go from its state into the wanted one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch; times are whole seconds since 1970."""

    id: str
    owner: str
    """A digest of the credentials, empty without any."""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: Mapping[str, str] | None = None
    result_seconds: int
    """How long its results are kept."""
    status: str = "validating"
    times: Mapping[str, int] = field(default_factory=dict)
    """When each later state began."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    result_files: tuple[str | None, str | None] = (None, None)
    """Ids of the files of answers and of errors, once they are whole and not empty."""
    errors: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in _NEXT

    @property
    def result_ids(self) -> tuple[str, str]:
        """Ids of the files that results are written to: answers, errors."""
        digits = self.id.removeprefix("batch_")
        return f"file-{digits}0", f"file-{digits}1"

    def moved(self, status: str, now: float, **changes: Any) -> "Batch":
        """Return the batch in its next state. Raises StateError."""
        if status not in _NEXT.get(self.status, ()):
            raise StateError(f"a batch that is {self.status} cannot become {status}")
        return replace(self, status=status, times={**self.times, status: int(now)}, **changes)

    def body(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        times = {f"{status}_at": self.times.get(status) for status in STATUSES[1:]}
        output, errors = self.result_files
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": output,
            "error_file_id": errors,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **times,
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "metadata": self.metadata,
        }


def window_seconds(window: str) -> int | None:
    """Return the seconds of ``24h``, ``90m`` or ``7d``, None for what is no such time."""
    written = _WINDOW.fullmatch(window)
    return int(written[1]) * _SECONDS[written[2]] if written else None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input, counted from 1 without empty ones: a request, or what is wrong."""

    number: int
    custom_id: str | None = None
    body: bytes = b""
    fault: tuple[str, str] | None = None
    """Code and message."""


def read_lines(file: IO[bytes], endpoint: str) -> Iterator[Line]:
    """Yield the lines; of two with one ``custom_id``, the later is at fault."""
    seen: set[bytes] = set()
    for number, raw in enumerate(_raw_lines(file), 1):
        line = _line(number, raw, endpoint)
        if line.custom_id is not None:
            digest = blake2b(line.custom_id.encode(errors="replace"), digest_size=16).digest()
            if digest in seen:
                problem = "The 'custom_id' was used by an earlier line of this file."
                line = replace(line, body=b"", fault=("duplicate_custom_id", problem))
            seen.add(digest)
        yield line


def count_lines(file: IO[bytes]) -> tuple[int, Mapping[str, Any] | None]:
    """Return how many lines there are, and what is wrong with the file as a whole."""
    total = 0
    for raw in _raw_lines(file):
        total += 1
        try:
            raw.decode()
        except UnicodeDecodeError:
            # What is cut at the bound may end within a character.
            if len(raw) <= MAX_LINE_BYTES:
                return total, batch_error("invalid_encoding", "The file is not UTF-8.", total)
        if total > MOST_LINES:
            message = f"The file has more than {MOST_LINES} requests. Divide it."
            return total, batch_error("too_many_requests", message)
    if not total:
        return 0, batch_error("empty_file", "The file has no requests.")
    return total, None


def batch_error(code: str, message: str, line: int | None = None) -> Mapping[str, Any]:
    """Return an entry of a failed batch's ``errors``."""
    return {"code": code, "message": message, "param": None, "line": line}


def _raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield lines that are not empty; of one that is too long, a byte more than the bound."""
    while raw := file.readline(MAX_LINE_BYTES + 1):
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES)
        if stripped := raw.removeprefix(BOM_UTF8).strip():
            yield stripped if len(raw) <= MAX_LINE_BYTES else raw


def _line(number: int, raw: bytes, endpoint: str) -> Line:
    if len(raw) > MAX_LINE_BYTES:
        message = f"The line is longer than {MAX_LINE_BYTES} bytes."
        return Line(number, fault=("request_too_large", message))
    try:
        given = parse_body(raw)
    except ApiError as error:
        message = error.message.replace("The request body", "The line")
        return Line(number, fault=(error.code or "invalid_json_line", message))
    custom_id = given.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_CUSTOM_ID:
        message = f"'custom_id' must be a text of 1 to {_MAX_CUSTOM_ID} characters."
        return Line(number, fault=("missing_required_parameter", message))
    body = given.get("body")
    if given.get("method") != "POST":
        fault = "invalid_method", "'method' must be 'POST'."
    elif given.get("url") != endpoint:
        fault = "invalid_url", f"'url' must be the batch's endpoint, '{endpoint}'."
    elif not isinstance(body, dict):
        fault = "missing_required_parameter", "'body' must be an object."
    elif body.get("stream") not in (None, False):
        fault = "unsupported_parameter", "'stream' is not supported in a batch; leave it out."
    else:
        try:
            return Line(number, custom_id, orjson.dumps(body))
        except orjson.JSONEncodeError:
            fault = "invalid_json_line", "The line is nested too deeply."
    return Line(number, custom_id, fault=fault)


def answered_line(batch: Batch, line: Line, status: int, request_id: str, body: bytes) -> bytes:
    """Return the line of a request that the server answered with the JSON ``body``."""
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _result(batch, line, response, None)


def faulty_line(batch: Batch, line: Line, code: str, message: str) -> bytes:
    """Return the line of a request that was never computed."""
    return _result(batch, line, None, {"code": code, "message": message})


def _result(batch: Batch, line: Line, response: Any, error: Any) -> bytes:
    digits = batch.id.removeprefix("batch_")[:24]
    told = {
        "id": f"batch_req_{digits}{line.number:06x}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)


def number_of(raw: bytes) -> int | None:
    """Return which line a whole line of results answers, None for a torn one."""
    try:
        told = orjson.loads(raw) if raw.endswith(b"\n") else None
        written = _RESULT_ID.fullmatch(told["id"]) if isinstance(told, dict) else None
    except (ValueError, KeyError, TypeError):
        return None
    return int(written[1], 16) if written else None
