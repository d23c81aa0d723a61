"""Short scenarios of `make chaos`, and what its judge takes for a fault."""

from pathlib import Path

import orjson
import pytest

from scripted_upstream import completion, stream_of
from tests.chaos.installation import UnavailableError
from tests.chaos.load import Asked, judge
from tests.chaos.scenarios import SCENARIOS, Scenario, run

ASKED = Asked("tenant-a", "How do I grow the fern?")
HIT = "refrain; hit; ttl=9; detail=exact"
ERROR = b'{"error":{"message":"","type":"","param":null,"code":null}}'


@pytest.mark.parametrize(
    "scenario", [each for each in SCENARIOS if each.short], ids=lambda each: each.name
)
async def test_a_fault_under_load_makes_no_answer_wrong_and_loses_none(
    scenario: Scenario, tmp_path: Path
):
    try:
        result = await run(scenario, tmp_path, 0.5)
    except UnavailableError as why:
        pytest.skip(str(why))
    assert result.broken == []
    assert result.figures["hits"] > 0
    assert result.figures["misses"] > 10


def judged(raw: bytes, *, status: int = 200, cache: str = "", error: str = "") -> str:
    streams = raw.startswith(b"data:")
    return judge(ASKED, status, cache, raw, streams=streams, error=error).kind


def plain(text: str) -> bytes:
    return orjson.dumps(completion(text))


WHOLE = stream_of(ASKED.answer)


def test_the_right_answer_is_a_hit_or_a_miss():
    assert judged(plain(ASKED.answer)) == "miss"
    assert judged(plain(ASKED.answer), cache=HIT) == "hit"
    assert judged(b"".join(WHOLE), cache=HIT) == "hit"


@pytest.mark.parametrize(
    "other", [Asked("tenant-b", ASKED.question), Asked(ASKED.tenant, "How do I grow the oak?")]
)
def test_the_answer_of_another_tenant_or_question_is_wrong(other: Asked):
    assert judged(plain(other.answer)) == "wrong"
    assert judged(b"".join(stream_of(other.answer)), cache=HIT) == "wrong"


def test_a_part_of_an_answer_that_is_said_to_be_whole_is_truncated():
    assert judged(plain(ASKED.answer[:30])) == "truncated"
    assert judged(b"".join([*WHOLE[:9], *WHOLE[-2:]])) == "truncated"


def test_a_part_of_an_answer_needs_an_error_or_a_broken_connection():
    part = b"".join(WHOLE[:9])
    assert judged(part) == "formless"
    assert judged(part, error="closed") == "broke"
    assert judged(part + b"data: " + ERROR + b"\n\n") == "error"
    assert judged(part + b'data: {"cut\n\ndata: ' + ERROR + b"\n\n") == "formless"


def test_an_error_needs_its_form_unless_it_is_the_upstreams():
    assert judged(ERROR, status=502) == "error"
    assert judged(b"oops", status=502) == "formless"
    assert judged(b"oops", status=502, cache="refrain; fwd=miss; detail=upstream-status") == "error"


def test_garbage_may_pass_and_is_never_a_hit():
    assert judged(b'{"grbg": [,,') == "garbage"
    assert judged(b'{"grbg": [,,', cache=HIT) == "formless"
