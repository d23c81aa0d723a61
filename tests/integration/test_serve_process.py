"""`refrain serve` as a user starts it: real processes, the real encoder, the real openai client."""

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from processes import Process, child_running

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    process = Process(str(SUPPORT / "echo_upstream.py"))
    yield f"http://127.0.0.1:{process.wait_for_line('').strip()}"
    process.stop(signal.SIGKILL)


def serve(upstream: str, data: Path, *more: str) -> tuple[Process, str]:
    process = Process(
        *("-m", "gateway.cli", "serve", "--upstream", f"{upstream}/v1"),
        *("--port", "0", "--data-dir", str(data), *more),
    )
    line = process.wait_for_line("ready: base URL")
    return process, line.rpartition(" ")[2]


def end(process: Process, number: signal.Signals) -> None:
    """End it and check its exit code, and that none of its processes is left."""
    descriptors = [os.pidfd_open(pid) for pid in process.children()]
    assert len(descriptors) == 2
    assert process.stop(number) == (-9 if number is signal.SIGKILL else 0)
    for descriptor in descriptors:
        # Readable once the process has ended.
        assert select.select([descriptor], [], [], 30)[0]
        os.close(descriptor)


@pytest.fixture(scope="module")
def served(
    upstream: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Process, str]]:
    process, url = serve(upstream, tmp_path_factory.mktemp("data"))
    yield process, url
    process.stop(signal.SIGKILL)


@pytest.fixture
def client(served: tuple[Process, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served[1], api_key="anything", max_retries=0) as client:
        yield client


def ask(
    client: openai.OpenAI, question: str, *before: dict[str, str], **more: Any
) -> tuple[str, str]:
    """Return Cache-Status and the answer."""
    messages: Any = [*before, {"role": "user", "content": question}]
    raw = client.chat.completions.with_raw_response.create(model="m", messages=messages, **more)
    answer = raw.parse()
    if more.get("stream"):
        text = "".join(c.delta.content or "" for chunk in answer for c in chunk.choices)
    else:
        text = answer.choices[0].message.content
    return raw.headers["Cache-Status"], text


def test_a_paraphrase_is_a_semantic_hit_on_both_wires(client: openai.OpenAI):
    stored = "How do I reset my password?"
    assert ask(client, stored) == ("refrain; fwd=miss; stored", f"You asked: {stored}")
    for streamed in (False, True):
        status, text = ask(client, "How can I reset my password?", stream=streamed)
        assert status.startswith("refrain; hit; ttl=")
        assert 'detail="semantic; similarity=0.9' in status
        assert text == f"You asked: {stored}"


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("How do I delete my account?", "How do I delete my project?"),
        ("How do I enable two-factor login?", "How do I disable two-factor login?"),
        ("Can I get a refund within 30 days?", "Can I get a refund within 90 days?"),
        ("Does the plan include support?", "Does the plan not include support?"),
        ("What does 'pending' mean?", "What does 'failed' mean?"),
        ("How do I move files from Paris to Rome?", "How do I move files from Rome to Paris?"),
    ],
)
def test_a_near_miss_is_a_miss(client: openai.OpenAI, stored: str, asked: str):
    ask(client, stored)
    assert ask(client, asked) == ("refrain; fwd=miss; stored", f"You asked: {asked}")


def test_the_rest_of_the_request_must_be_equal(client: openai.OpenAI, served: tuple[Process, str]):
    stored, asked = "How do I export my invoices?", "How can I export my invoices?"
    ask(client, stored)
    assert "semantic" in ask(client, asked)[0]
    system = {"role": "system", "content": "Be terse."}
    earlier = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    for before, more in (([system], {}), (earlier, {}), ([], {"temperature": 0.1})):
        assert "fwd=miss" in ask(client, asked, *before, **more)[0]
    other = openai.OpenAI(base_url=served[1], api_key="another", max_retries=0)
    assert "fwd=miss" in ask(other, asked)[0]


def test_text_the_encoder_cannot_read_whole_is_a_miss(client: openai.OpenAI):
    long = "How do I reset the password of my account? " * 100
    assert "fwd=miss" in ask(client, long + "Today?")[0]
    assert "fwd=miss" in ask(client, long + "Tomorrow?")[0]


def test_a_killed_encoder_is_a_miss_and_comes_back(
    client: openai.OpenAI, served: tuple[Process, str]
):
    process, _ = served
    ask(client, "How do I change my plan?")
    # A vector follows the reply; once it is found, it is on disk.
    assert "semantic" in ask(client, "How can I change my plan?")[0]
    os.kill(child_running(process, "embeddings"), signal.SIGKILL)
    process.wait_for_line("starting it again")
    status, _ = ask(
        client, "How can I change my plan?", extra_headers={"Cache-Control": "no-store"}
    )
    assert "fwd=bypass" in status
    assert "exact" in ask(client, "How do I change my plan?")[0]
    process.wait_for_line("embeddings ready")
    assert "semantic" in ask_until_cached(client, "How can I change my plan?")


def ask_until_cached(client: openai.OpenAI, question: str) -> str:
    """Ask without forwarding until there is a hit: the gateway connects again in its own time."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask(client, question, extra_headers={"Cache-Control": "only-if-cached"})[0]
        except openai.InternalServerError:
            assert time.monotonic() < deadline, "no hit within a minute"


def test_entries_and_vectors_survive_kill_9_and_no_process_does(upstream: str, tmp_path: Path):
    process, url = serve(upstream, tmp_path)
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    ask(client, "How do I cancel my order?")
    assert "semantic" in ask(client, "How can I cancel my order?")[0]
    end(process, signal.SIGKILL)

    process, url = serve(upstream, tmp_path)
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    assert "exact" in ask(client, "How do I cancel my order?")[0]
    assert "semantic" in ask(client, "How can I cancel my order?")[0]
    end(process, signal.SIGTERM)


def test_several_workers_share_entries_and_metrics(upstream: str, tmp_path: Path):
    process, url = serve(upstream, tmp_path, "--workers", "2")
    statuses = []
    for _ in range(12):
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            statuses.append(ask(client, "Where is my parcel?")[0])
    with openai.OpenAI(base_url=url.removesuffix("/v1"), api_key="k") as scraper:
        page = counted = ""
        # A worker writes down what it counts once a second.
        while counted != "12.0":
            page = scraper.get("/metrics", cast_to=str)
            lines = [line for line in page.splitlines() if line.startswith("refrain_requests_tot")]
            counted = str(sum(float(line.rpartition(" ")[2]) for line in lines))
    code = process.stop()

    assert ["stored" in status for status in statuses] == [True] + [False] * 11
    assert all("exact" in status for status in statuses[1:])
    assert "\nrefrain_entries " in page
    assert code == 0


def test_a_purge_by_one_worker_holds_for_all_and_a_killed_worker_holds_nothing_up(
    upstream: str, tmp_path: Path
):
    process, url = serve(upstream, tmp_path, "--workers", "2")
    statuses: list[list[str]] = []

    def ask_and_purge(rounds: int) -> None:
        """Ask on connections of any worker, then let any of them purge."""
        for _ in range(rounds):
            statuses.append([])
            for _ in range(8):
                with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
                    statuses[-1].append(ask(client, "Where is my parcel?")[0])
            root = url.removesuffix("/v1")
            with openai.OpenAI(base_url=root, api_key="k", max_retries=0) as admin:
                everything = {"all": True, "dry_run": False}
                told: Any = admin.post("/admin/purge", body=everything, cast_to=object)
                assert told["entries"] == 1

    ask_and_purge(6)
    killed = child_running(process, "gateway.cli.process.worker")
    os.kill(killed, signal.SIGKILL)
    process.wait_for_line("starting it again")
    ask_and_purge(3)
    assert process.stop() == 0
    for first, *others in statuses:
        assert "fwd=miss" in first
        assert all("exact" in status for status in others)


def test_a_data_directory_is_one_gateways(served: tuple[Process, str]):
    first, _ = served
    second = Process(*first.popen.args[1:])
    assert second.popen.wait(60) == 1
    second.wait_for_line(f"is in use by another gateway (pid {first.popen.pid}); stop it, or")
    assert not any("listening" in line for line in second.lines)
