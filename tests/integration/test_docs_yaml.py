"""`refrain serve` starts with every YAML that the docs show, settings and policies alike."""

import re
import time
import urllib.request
from pathlib import Path

import orjson
import pytest
import yaml
from processes import Process

from gateway.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
UPSTREAM = "http://127.0.0.1:9/v1"
SECONDS = 60


def blocks() -> list[tuple[str, str, dict]]:
    """Return each YAML mapping of the docs: fenced, or indented by four spaces."""
    found = []
    for page in PAGES:
        text = page.read_text()
        shown = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        shown += re.findall(r"(?:\A|\n\n)((?:(?:    .*)?\n)+)", text)
        for block in shown:
            try:
                parsed = yaml.safe_load(block)
            except yaml.YAMLError:
                continue
            if isinstance(parsed, dict):
                found.append((f"{page.relative_to(ROOT)}", block, parsed))
    return found


SETTINGS = [
    (page, parsed) for page, _, parsed in blocks() if set(parsed) <= set(Settings.model_fields)
]
POLICIES = [(page, text) for page, text, parsed in blocks() if "version" in parsed]


def serve(*argv: str, **environment: str) -> Process:
    return Process("-m", "gateway.cli", "serve", "--port", "0", *argv, **environment)


def address(process: Process) -> str:
    line = process.wait_for_line("listening on ")
    return line.partition("listening on ")[2].partition(",")[0]


def state(url: str) -> dict:
    """Return what /readyz says, ready or not."""
    with urllib.request.urlopen(f"{url}/healthz", timeout=SECONDS):
        pass
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=SECONDS) as reply:
            return orjson.loads(reply.read())
    except urllib.error.HTTPError as reply:
        return orjson.loads(reply.read())


def test_the_docs_show_settings_and_policies():
    assert "docs/upstreams.md" in {page for page, _ in SETTINGS}
    assert len(POLICIES) > 20


@pytest.mark.parametrize(("page", "settings"), SETTINGS)
def test_settings_of_the_docs_serve(page: str, settings: dict, tmp_path: Path):
    complete = {"data_dir": str(tmp_path / "data"), **settings}
    if not {"upstream", "upstreams"} & set(settings):
        complete["upstream"] = UPSTREAM
    keys = tmp_path / "keys"
    keys.write_text(f"team {'ab' * 32}\n")
    environment = {}
    for upstream in settings.get("upstreams", ()):
        if name := upstream.get("api_key_env"):
            environment[name] = "a-key"
            complete["gateway_keys"] = str(keys)
    file = tmp_path / "refrain.yaml"
    file.write_text(yaml.safe_dump(complete))
    process = serve("--config", str(file), **environment)
    try:
        assert "status" in state(address(process))
    finally:
        assert process.stop() == 0, process.lines


def test_an_upstream_without_a_name_is_called_by_host_and_port(tmp_path: Path):
    file = tmp_path / "refrain.yaml"
    file.write_text(f"data_dir: {tmp_path / 'data'}\nupstreams:\n  - url: {UPSTREAM}\n")
    process = serve("--config", str(file))
    try:
        assert list(state(address(process))["upstreams"]) == ["127.0.0.1:9"]
    finally:
        assert process.stop() == 0, process.lines


def test_policies_of_the_docs_are_taken_by_a_running_gateway(tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICIES[0][1])
    data = str(tmp_path / "data")
    process = serve("--upstream", UPSTREAM, "--policy", str(policy), "--data-dir", data)
    try:
        url = address(process)
        for number, (page, text) in enumerate(POLICIES, start=100):
            shown = re.sub(r"^generation:.*\n", "", text, flags=re.MULTILINE)
            policy.write_text(f"{shown}\ngeneration: {number}\n")
            until = time.monotonic() + SECONDS
            while (told := state(url)["policy"])["generation"] != number:
                assert told["problem"] is None, (page, told)
                assert time.monotonic() < until, page
    finally:
        assert process.stop() == 0, process.lines


def test_a_data_directory_is_one_gateways(tmp_path: Path):
    argv = ("--upstream", UPSTREAM, "--data-dir", str(tmp_path / "data"))
    first = serve(*argv)
    try:
        address(first)
        second = serve(*argv)
        assert second.popen.wait(SECONDS) == 1
        second.wait_for_line(f"is in use by another gateway (pid {first.popen.pid}); stop it, or")
        assert not any("listening" in line for line in second.lines)
    finally:
        first.popen.kill()
        first.popen.wait(SECONDS)
    again = serve(*argv)
    try:
        state(address(again))
    finally:
        assert again.stop() == 0, again.lines
