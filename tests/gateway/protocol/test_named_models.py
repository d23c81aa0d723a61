"""Every model that a request names is found; what its user writes names none."""

import random
import tracemalloc

import orjson
import pytest

from gateway.protocol import named_models
from gateway.protocol.exact_json import BodyError
from gateway.protocol.named_models import (
    models_in,
    models_in_batch,
    models_in_file,
    models_in_head,
)


@pytest.mark.parametrize(
    ("more", "others"),
    [
        ({}, []),
        ({"models": ["b", "c"], "route": "fallback"}, ["b", "c"]),
        ({"Model": "b"}, ["b"]),
        ({"MODEL": ["b"]}, ["b"]),
        ({"fallbacks": ["b", {"model": "c", "messages": [{"content": "hi"}]}]}, ["b", "c"]),
        ({"fallbacks": [{"a": ["b"]}]}, ["b"]),
        ({"route": ["b"]}, ["b"]),
        ({"provider": {"order": ["x"], "allow_fallbacks": False, "models": ["b"]}}, ["b"]),
        ({"extra_body": {"model": "b"}}, ["b"]),
        ({"plugins": [{"id": "auto-router", "allowed_models": ["b/*"]}]}, ["b/*"]),
        ({"plugins": [{"id": "web", "search_engine": "exa"}]}, []),
        ({"preset": "b"}, ["b"]),
        ({"tools": [{"type": "image_generation", "model": "b"}]}, ["b"]),
        ({"requests": [{"custom_id": "1", "params": {"model": "b"}}]}, ["b"]),
        ({"tools": [{"function": {"parameters": {"properties": {"model": {"type": "x"}}}}}]}, []),
        ({"messages": [{"content": [{"type": "tool_use", "input": {"model": "T"}}]}]}, []),
        ({"response_format": {"schema": {"properties": {"model": {"enum": ["x"]}}}}}, []),
        ({"metadata": {"model": "x"}}, []),
        ({"fallbacks": None, "models": 5, "modalities": ["text"]}, []),
    ],
)
def test_the_models_of_a_body(more, others):
    assert models_in({**more, "model": "a"}) == ["a", *others]


def test_the_models_of_a_head():
    headers = {"host": "x", "helicone-model-override": "c", "accept": "d"}
    assert models_in_head("api-version=1&model=a&Models=b%2F", headers) == ["a", "b/", "c"]


def test_the_models_of_a_batch():
    lines = [{"custom_id": str(n), "body": {"model": each}} for n, each in enumerate("aba")]
    assert models_in_batch(b"\n".join(map(orjson.dumps, lines)) + b"\n\n") == ["a", "b"]
    for wrong in (
        b'{"body": {}}',
        b"{}",
        b"not JSON",
        b'{"body": {"model": "a", "model": "b"}}',
        b"\n" * 60_000,
    ):
        with pytest.raises(BodyError):
            models_in_batch(wrong)


PIECES = (b"\n", b'{"body": {"model": "m"}}', b'{"b\\u006fdy": {"model": "n"}}', b'"bo', b"a", b" ")


def test_each_row_with_a_request_is_read_wherever_it_stands():
    draw = random.Random(1)
    for _ in range(2_000):
        data = b"".join(draw.choices(PIECES, k=draw.randrange(9)))
        rows = {line.strip() for line in data.split(b"\n")}
        expected = {model for row, model in zip(PIECES[1:3], "mn", strict=True) if row in rows}
        assert set(models_in_file(data)) == expected, data


def test_other_rows_take_no_memory():
    data = b"ab\n" * 1_000_000
    tracemalloc.start()
    assert models_in_file(data) == []
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < len(data)


def test_the_rows_with_a_request_are_bounded(monkeypatch):
    monkeypatch.setattr(named_models, "MOST_REQUESTS", 2)
    row = PIECES[1] + b"\n"
    assert models_in_file(row * 2 + b"a\n" * 9) == ["m"]
    with pytest.raises(BodyError, match="more than 2 rows"):
        models_in_file(row * 3)
