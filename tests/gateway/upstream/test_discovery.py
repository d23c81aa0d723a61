"""Lists of replicas, in files and by a real name server: what is read, and what is wrong."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dns_server import DnsServer, dns_server

from gateway.server.open.upstreams import read_discovery_file
from gateway.settings import Settings, SettingsError, load_settings
from gateway.upstream.pool.watch import discovery
from gateway.upstream.pool.watch.discovery import (
    LONGEST_TTL,
    MOST_REPLICAS,
    RETRY_SECONDS,
    SHORTEST_TTL,
    Address,
    DiscoveryError,
    DnsSource,
    FileSource,
    read_addresses,
)
from gateway.upstream.settings import UpstreamSettings

HOST = "llm.test"


@pytest.fixture
async def dns() -> AsyncIterator[DnsServer]:
    async with dns_server() as server:
        yield server


def source(dns: DnsServer, port: int | None = 8000) -> DnsSource:
    return DnsSource("gpu", HOST, port, ("127.0.0.1", int(dns.address.partition(":")[2])))


def test_a_file_has_an_address_a_line():
    text = "# replicas\n10.0.0.2:9000\n\n gpu-1.internal  # old\n[fd00::1]:8001\n[fd00::2]\n"
    assert read_addresses(text.encode(), "f", 8000) == (
        Address("10.0.0.2", 9000),
        Address("fd00::1", 8001),
        Address("fd00::2", 8000),
        Address("gpu-1.internal", 8000),
    )


def test_an_address_that_is_there_twice_counts_once():
    assert read_addresses(b"a:1\nb:1\na:1\na:2\n", "f") == (
        Address("a", 1),
        Address("a", 2),
        Address("b", 1),
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("http://10.0.0.1:8000/v1", "f:2: expected one address such as 10.0.0.1:8000, without htt"),
        ("10.0.0.1:8000 10.0.0.2:8000", "f:2: expected one address such as 10.0.0.1:8000"),
        ("10.0.0.256:8000", "f:2: expected one address such as"),
        ("10.0.0.1:0", "with a port from 1 to 65535"),
        ("10.0.0.1:65536", "with a port from 1 to 65535"),
        ("10.0.0.1:", "with a port from 1 to 65535"),
        ("10.0.0.1", "f:2: expected one address such as 10.0.0.1:8000: it needs a port"),
        ("fd00::1", "f:2: "),
        ("[fd00::1", "f:2: "),
        ("me:secret@host:80", "f:2: "),
        ("-x:80", "f:2: expected one address"),
    ],
)
def test_a_wrong_line_is_told_by_its_number_and_not_quoted(line: str, told: str):
    with pytest.raises(DiscoveryError) as error:
        read_addresses(f"a:1\n{line}\n".encode(), "f")
    assert told in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "f: expected at least one address"),
        (b"# nothing\n", "f: expected at least one address"),
        (b"\xff\xfe", "f: expected text in UTF-8"),
        (
            b"".join(b"a:%d\n" % port for port in range(1, MOST_REPLICAS + 2)),
            "f: expected at most 256 addresses",
        ),
    ],
)
def test_a_file_without_a_list_is_told(data: bytes, told: str):
    with pytest.raises(DiscoveryError, match=told):
        read_addresses(data, "f")


async def test_the_last_good_list_of_a_file_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "replicas.txt"
    path.write_text("a:1\n")
    one = UpstreamSettings(url="http://gpu/v1", discover={"file": path})
    listed = FileSource(read_discovery_file(one, path))
    assert (await listed.look())[0] == (Address("a", 1),)
    for text, told in (("a:1\nb\n", f"{path}:2: "), ("", "at least one"), (None, "cannot be read")):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        for _ in range(3):
            assert (await listed.look())[0] == (Address("a", 1),)
        assert told in (listed.problem or "")
    assert len([each for each in caplog.records if "last good list" in each.getMessage()]) == 3
    path.write_text("b:1\n")
    for _ in range(2):
        found, _ = await listed.look()
    assert (found, listed.problem) == ((Address("b", 1),), None)


async def test_addresses_have_the_urls_port_and_their_ttl(dns: DnsServer):
    dns.set(HOST, "A", "10.0.0.2", "10.0.0.1", ttl=30)
    assert await source(dns).look() == ((Address("10.0.0.1", 8000), Address("10.0.0.2", 8000)), 30)


async def test_a_replica_with_addresses_of_both_kinds_counts_once(dns: DnsServer):
    dns.set(HOST, "A", "10.0.0.1")
    dns.set(HOST, "AAAA", "fd00::1")
    assert (await source(dns).look())[0] == (Address("10.0.0.1", 8000),)
    dns.set(HOST, "A")
    assert (await source(dns).look())[0] == (Address("fd00::1", 8000),)


@pytest.mark.parametrize(("ttl", "waits"), [(0, SHORTEST_TTL), (5, 5.0), (86_400, LONGEST_TTL)])
async def test_the_ttl_has_bounds(dns: DnsServer, ttl: int, waits: float):
    dns.set(HOST, "A", "10.0.0.1", ttl=ttl)
    assert (await source(dns).look())[1] == waits


async def test_the_shortest_ttl_on_the_way_counts(dns: DnsServer):
    dns.set(HOST, "CNAME", "real.test", ttl=7)
    dns.set("real.test", "A", "10.0.0.1", ttl=50)
    assert await source(dns).look() == ((Address("10.0.0.1", 8000),), 7)


async def test_srv_records_have_ports_ranks_and_weights(dns: DnsServer):
    records = ["10 30 8000 b.test.", "10 10 8001 a.test.", "20 20 8000 c.test."]
    dns.set(HOST, "SRV", *records, "0 0 8000 .", "0 1 0 d.test.")
    found, _ = await source(dns, None).look()
    assert found == (
        Address("a.test", 8001, 0, 0.5),
        Address("b.test", 8000, 0, 1.5),
        Address("c.test", 8000, 1, 1.0),
    )
    dns.set(HOST, "SRV", "0 0 8000 a.test.")
    assert (await source(dns, None).look())[0] == (Address("a.test", 8000),)


@pytest.mark.parametrize("target", ["a\\@x.test.", "a\\ b.test.", "-a.test.", "a\\/b.test."])
async def test_an_srv_target_that_is_no_host_name_is_told(dns: DnsServer, target: str):
    listed, good = source(dns, None), "0 1 8000 a.test."
    dns.set(HOST, "SRV", good)
    found, _ = await listed.look()
    dns.set(HOST, "SRV", "0 1 8000 b.test.", f"0 1 8000 {target}")
    assert await listed.look() == (found, RETRY_SECONDS)
    assert "the SRV records of llm.test: the target " in (listed.problem or "")
    assert "expected a host name" in (listed.problem or "")
    dns.set(HOST, "SRV", good)
    assert (await listed.look())[0] == found
    assert listed.problem is None


async def test_a_name_that_answers_nothing_keeps_the_last_list(
    dns: DnsServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(discovery, "LOOKUP_SECONDS", 0.3)
    caplog.set_level(logging.INFO)
    listed, found = source(dns), (Address("10.0.0.1", 8000),)
    dns.set(HOST, "A", "10.0.0.1")
    assert (await listed.look())[0] == found

    async def fails_thrice(told: str) -> None:
        caplog.clear()
        for _ in range(3):
            assert await listed.look() == (found, RETRY_SECONDS)
        [line] = [record.getMessage() for record in caplog.records]
        assert line.startswith("upstream gpu: no list of replicas (keeping the last 1 replicas): ")
        assert told in line
        assert told in (listed.problem or "")

    dns.set(HOST, "A")
    await fails_thrice("the addresses (A, AAAA) of llm.test: expected at least one")
    dns.records.clear()
    await fails_thrice("the name llm.test does not exist")
    dns.failing = True
    await fails_thrice("no name server has a valid answer for llm.test")
    dns.failing, dns.silent = False, True
    await fails_thrice("no name server has answered for llm.test within")
    dns.silent = False
    dns.set(HOST, "A", "10.0.0.1")
    await listed.look()
    assert listed.problem is None
    assert "is there again" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("url: http://gpu/v1\n    discover: dns", ":2: upstreams[0]: expected a port in the url"),
        ("url: http://gpu:1/v1\n    discover: srv", "expected no port in the url beside discover"),
        ("url: http://10.0.0.1:1/v1\n    discover: dns", "expected a host name in the url"),
        (
            "url: http://gpu/v1\n    discover: consul",
            ":3: upstreams[0].discover: expected",
        ),
        (
            "url: http://gpu/v1\n    discover: {path: x}",
            "expected dns, srv or {file:",
        ),
        ("url: http://gpu/v1\n    discover: {file: x, port: 1}", "expected dns, srv or {file:"),
        ("discover: dns", ":2: upstreams[0].url: expected the key url"),
    ],
)
def test_a_wrong_setting_is_told_with_its_line(tmp_path: Path, text: str, told: str):
    file = tmp_path / "refrain.yaml"
    file.write_text(f"upstreams:\n  - {text}\n")
    with pytest.raises(SettingsError) as error:
        load_settings({}, {}, file)
    assert told in str(error.value)


@pytest.mark.parametrize("value", ["dns.example", "127.0.0.1:0", "10.0.0.1/24", "me@10.0.0.1", ""])
def test_a_wrong_name_server_is_told(value: str):
    with pytest.raises(SettingsError, match="--dns-server: expected the IP address of a name ser"):
        load_settings({"dns_server": value}, {}, None)


def test_the_settings_of_discovery_reach_a_worker():
    given = {"url": "http://gpu/v1", "discover": {"file": "replicas.txt"}, "load_signal": True}
    other = {"preset": "vllm", "url": "http://vllm:8000/v1", "discover": "dns"}
    settings = Settings(upstreams=(given, other), dns_server="127.0.0.1:8600")
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert [one.load_signal for one in settings.all_upstreams] == [True, True]
