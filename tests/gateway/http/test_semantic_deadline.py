"""A lookup by meaning has one deadline, however many parts of it are slow."""

from dataclasses import replace

import pytest
from semantic_rig import learning

QUESTIONS = [
    *("How do I reset my password?", "How do I change my address?", "How do I close my account?"),
    "How do I cancel my order?",
]
ASKED = "How do I return my parcel?"


class Slow:
    """A part behind its port; each call is noted and has the clock go on."""

    def __init__(self, part, clock):
        self._part, self._clock = part, clock

    def __getattr__(self, name):
        call = getattr(self._part, name)
        if name not in ("search", "get", "verify"):
            return call

        async def slow(*arguments, **options):
            self._clock.calls.append(name)
            self._clock.now += self._clock.seconds.get(name, 0.0)
            return await call(*arguments, **options)

        return slow


class Clock:
    """Goes on by what the parts take."""

    def __init__(self):
        self.now = 0.0
        self.seconds = {}
        self.calls = []

    def __call__(self):
        return self.now


@pytest.fixture
async def rig(tmp_path, upstream):
    """A rig with four answers stored, all of them near, none of them fitting."""
    async with learning(tmp_path, upstream.url, "max_wrong_hits: 1%") as made:
        made.verifier.said = "number"
        for question in QUESTIONS:
            await made.ask(question)
        assert len(made.index.keys) == len(QUESTIONS)
        made.clock = Clock()
        made.pipeline = replace(
            made.pipeline,
            store=Slow(made.store, made.clock),
            semantic=Slow(made.index, made.clock),
            verifier=Slow(made.verifier, made.clock),
            clock=made.clock,
        )
        yield made


CANDIDATE = ["get", "verify"]


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [
        ({"search": 1.0}, []),
        ({"get": 1.0}, ["get"]),
        ({"verify": 1.0}, CANDIDATE),
        ({"verify": 0.4}, CANDIDATE * 3),
        ({"search": 0.3, "get": 0.2, "verify": 0.2}, [*CANDIDATE, *CANDIDATE]),
    ],
)
async def test_once_the_deadline_has_passed_nothing_more_is_looked_into(rig, seconds, calls):
    rig.clock.seconds = seconds
    cache, _ = await rig.ask(ASKED)
    assert cache == "refrain; fwd=miss; stored"
    assert rig.clock.calls == ["get", "search", *calls]
    assert rig.latest.lookup.semantic_fault == "timeout"


async def test_within_the_deadline_every_candidate_is_looked_into(rig):
    rig.clock.seconds = {"search": 0.1, "get": 0.1, "verify": 0.1}
    cache, _ = await rig.ask(ASKED)
    assert cache == "refrain; fwd=miss; stored"
    assert rig.clock.calls == ["get", "search", *CANDIDATE * 4]
    assert rig.latest.lookup.semantic_fault is None


async def test_what_has_begun_in_time_may_be_a_hit(rig):
    rig.clock.seconds = {"search": 0.9, "verify": 5.0}
    rig.verifier.said = None
    cache, _ = await rig.ask(ASKED)
    assert "; hit; " in cache
    assert rig.clock.calls == ["get", "search", *CANDIDATE]


async def test_the_deadline_is_a_setting(rig):
    rig.clock.seconds = {"search": 0.1, "verify": 0.1}
    rig.pipeline = replace(rig.pipeline, semantic_seconds=0.25)
    await rig.ask(ASKED)
    assert rig.clock.calls == ["get", "search", *CANDIDATE * 2]
    assert rig.latest.lookup.semantic_fault == "timeout"
