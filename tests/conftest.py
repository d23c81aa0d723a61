"""Fixtures shared by all parts: a scripted upstream and the real gateway in this process."""

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from policies.decision import Endpoint
from process_tests import is_left_out
from running_gateway import RunningGateway, StartGateway, start_app
from running_redis import Chosen, newest_version, redis_folders
from scripted_upstream import ScriptedUpstream

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A test imports it before pytest knows it as a plugin, and warnings are errors.
pytest.register_assert_rewrite("tiny_checkpoints")
# How long an example takes is the machine's affair.
TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# The same examples each time: a commit is tested, not luck. `make soak` looks for new ones, and
# `make test` tries a part of them.
hypothesis_settings.register_profile("default", **TIMELESS, derandomize=True)
hypothesis_settings.register_profile("quick", **TIMELESS, derandomize=True, max_examples=20)
hypothesis_settings.register_profile("soak", **TIMELESS, derandomize=False, max_examples=10_000)
hypothesis_settings.load_profile("default")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which finds next to nothing and takes a third of it.

    Run in the middle of ``ast.parse`` it lets other threads parse, which CPython before 3.11.8
    takes for damage: "AST constructor recursion depth mismatch" (python/cpython#106905).
    """
    gc.disable()
    try:
        return (yield)
    finally:
        # To look through all that is imported takes half a second, in which each timer is late.
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Let what was imported end as it would have."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the GPU for one process; where there is none, that was told before this is asked."""
    if item.get_closest_marker("gpu") and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("a GPU is for one process of tests: pytest -m gpu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark what `make test` leaves out."""
    for item in items:
        if is_left_out(item.nodeid, item.fixturenames):
            item.add_marker("process")


LEFT_OUT = pytest.StashKey[int]()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count what a marker leaves out; a process of xdist tells the one that prints."""
    config = items[0].config
    config.stash[LEFT_OUT] = config.stash.get(LEFT_OUT, 0) + len(items)
    if (output := getattr(config, "workeroutput", None)) is not None:
        output["left_out"] = config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the count, which is the same in each process."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what is missing: with several processes, pytest does not."""
    if config.option.markexpr == "not process" and (count := config.stash.get(LEFT_OUT, 0)):
        where = "tests/support/process_tests.py names them, `make test-all` has them"
        terminalreporter.write_line(f"LEFT OUT [{count}] tests that start processes: {where}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of Redis with the newest version, or with those that their file names."""
    if "redis_version" in metafunc.fixturenames:
        newest = newest_version()
        versions = [
            version if version == newest else pytest.param(version, marks=pytest.mark.process)
            for version in getattr(metafunc.module, "REDIS_VERSIONS", (newest,))
        ]
        metafunc.parametrize("redis_version", versions, indirect=True, scope="module")


@pytest.fixture(scope="module")
def redis_version(request: pytest.FixtureRequest) -> Generator[str]:
    """The version that the servers of a test have."""
    if request.param not in redis_folders():
        pytest.skip(f"no redis-server {request.param} is installed")
    Chosen.version = request.param
    yield request.param
    Chosen.version = None


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream that is up."""
    scripted = ScriptedUpstream()
    app = web.Application(client_max_size=2**26)
    for endpoint in Endpoint:
        app.router.add_post(endpoint.value, scripted.handle)
    app.router.add_route("*", "/{tail:.*}", scripted.other)
    runner, scripted.url = await start_app(app)
    yield scripted
    await runner.cleanup()


BOUNDS = (
    "gateway.server.open.store.DISK_READ_SECONDS",
    "gateway.server.open.store.DISK_WRITE_SECONDS",
    "gateway.server.open.store.REDIS_SECONDS",
    "gateway.cache.stores.redis.claims.CALL_SECONDS",
    "gateway.cache.pii_scan.SCAN_SECONDS",
    "gateway.cache.writer.SETTLE_SECONDS",
    "gateway.semantic.verifier.GUARD_SECONDS",
    "gateway.upstream.sharing.shared_response.ANSWER_SECONDS",
)
"""Whatever takes longer becomes a miss or an estimate, which on a busy machine anything may."""
POLLS = (
    "gateway.app.POLICY_POLL_SECONDS",
    "gateway.server.open.semantic.ENCODER_POLL_SECONDS",
    "gateway.server.keys.auth.POLL_SECONDS",
    "gateway.server.keys.usage_sync.RETRY_SECONDS",
)
"""What is looked at again and again, which no test has to wait for."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gateway in this process wait; who tests a bound sets it again."""
    for bound in BOUNDS:
        monkeypatch.setattr(bound, 30.0)
    for poll in POLLS:
        monkeypatch.setattr(poll, 0.05)


@pytest.fixture
async def start_gateway(
    upstream: ScriptedUpstream, tmp_path: Path, patient: None
) -> AsyncIterator[StartGateway]:
    """Start gateways in this process; keyword arguments are settings."""
    from gateway.app import create_app
    from gateway.settings import Settings

    stops: list[Callable[[], Awaitable[None]]] = []

    async def start(*, semantic_socket: Path | None = None, **changes: Any) -> RunningGateway:
        options = {
            "upstream": (f"{upstream.url}/v1",),
            "data_dir": tmp_path / "data",
            "semantic_timeout": 30.0,
            "semantic_wait": 30.0,
            "verifier_timeout": 30.0,
            **changes,
        }
        app = create_app(Settings(**options), semantic_socket=semantic_socket)
        runner, url = await start_app(app)
        session = ClientSession()
        stopped = False

        async def stop() -> None:
            nonlocal stopped
            if not stopped:
                stopped = True
                await session.close()
                await runner.cleanup()

        stops.append(stop)
        return RunningGateway(url, session, options["data_dir"], stop)

    yield start
    for stop in stops:
        await stop()


@pytest.fixture
async def gateway(start_gateway: StartGateway) -> RunningGateway:
    """A gateway with the default policy and no semantic lookup, in front of ``upstream``."""
    return await start_gateway()
