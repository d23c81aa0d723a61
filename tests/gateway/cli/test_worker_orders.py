"""What a worker does when its parent tells it so, and what it reports."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.app import READINESS, STORE
from gateway.cli.process import worker as module
from gateway.cli.process.child_process import Order, Report
from gateway.cli.process.worker import Orders

LOADING = "encoder: loading"
UNKNOWN = "upstreams: no replica is known"


class Rig:
    """The parts of a worker that orders are about, and the workers that serve beside it."""

    def __init__(self, sock: socket.socket) -> None:
        self.has_parent = True
        self.stop = asyncio.Event()
        self.orders: asyncio.Queue[Order] = asyncio.Queue()
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.reasons: list[str] = []
        self.others: list[str] | None = []
        """Why those that serve are not ready; None if they cut the answer."""
        self.asked = asyncio.Semaphore(0)
        self.on_leave: Callable[[], None] = lambda: None
        app: Any = {READINESS: self, STORE: self}
        self.under_test = Orders(self, app, sock)  # type: ignore[arg-type]

    def tell(self, order: Order) -> None:
        self.orders.put_nowait(order)

    # The line to the parent.
    def report(self, report: Report | None = None) -> Any:
        if report is None:
            return self._readiness()
        self.reports.put_nowait(report)
        return None

    async def _readiness(self) -> dict[str, Any]:
        return {"reasons": self.reasons}

    # The store.
    async def leave(self) -> None:
        self.on_leave()

    # The workers that serve.
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /readyz ")
        if self.others is not None:
            page = json.dumps({"reasons": self.others}).encode()
            writer.write(b"HTTP/1.0 503 Service Unavailable\r\n\r\n" + page)
        writer.close()
        self.asked.release()

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(60):
            for _ in range(times):
                await self.asked.acquire()

    async def until_reported(self) -> Report:
        return await asyncio.wait_for(self.reports.get(), 60)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        rig = Rig(sock)
        yield rig
        rig.under_test.ignore()


async def serve_beside(rig: Rig) -> asyncio.Server:
    return await asyncio.start_server(rig.serve, sock=rig.under_test._sock.dup())


async def test_a_worker_is_ready_once_it_is_as_ready_as_those_that_serve(rig: Rig):
    async with await serve_beside(rig):
        rig.reasons = [LOADING]
        waiting = asyncio.create_task(rig.under_test.may_accept())
        await rig.until_asked(3)
        rig.others = None
        await rig.until_asked(3)
        rig.others = [UNKNOWN]
        await rig.until_asked(3)
        assert rig.reports.empty()
        # The service is down: no worker would become ready.
        rig.others = [UNKNOWN, LOADING]
        assert await rig.until_reported() is Report.READY
        rig.tell(Order.ACCEPT)
        await asyncio.wait_for(waiting, 60)


async def test_a_worker_that_is_never_ready_says_why_when_it_is_ended(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    async with await serve_beside(rig):
        rig.reasons, rig.others = [UNKNOWN, LOADING], [LOADING]
        waiting = asyncio.create_task(rig.under_test.may_accept())
        await rig.until_asked(3)
        rig.stop.set()
        await asyncio.wait_for(waiting, 60)
    assert rig.reports.empty()
    assert f"not ready to take connections: {UNKNOWN}\n" in caplog.text


async def test_a_worker_is_better_than_none(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "OTHERS_SECONDS", 0.01)
    rig.reasons = [LOADING]
    waiting = asyncio.create_task(rig.under_test.may_accept())
    assert await rig.until_reported() is Report.READY
    rig.tell(Order.ACCEPT)
    await asyncio.wait_for(waiting, 60)


async def test_a_worker_that_has_left_answers_the_order_to_leave(rig: Rig):
    rig.tell(Order.LEAVE)
    await asyncio.wait_for(rig.under_test.leave.wait(), 60)
    assert rig.reports.empty()
    rig.under_test.report_left()
    assert await rig.until_reported() is Report.LEFT


async def test_a_worker_that_can_follow_no_orders_stops(rig: Rig, caplog: pytest.LogCaptureFixture):
    def fail() -> None:
        raise RuntimeError("hush")

    rig.on_leave = fail
    rig.tell(Order.LEAVE)
    await asyncio.wait_for(rig.stop.wait(), 60)
    assert "a defect: this worker stops" in caplog.text


async def test_free_memory_is_returned_less_and_less_often_while_there_is_none():
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await module.return_memory(sleep)
    assert pauses[0] == module.TRIM_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] <= module.LONGEST_TRIM_PAUSE
