"""Every YAML that the docs show is taken: `refrain serve` starts with it, a policy is read."""

import re
import urllib.request
from pathlib import Path

import orjson
import pytest
import yaml
from processes import Process

from gateway.server.policy_file import PolicyFile
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
        for value in upstream.get("headers", {}).values():
            if isinstance(value, dict):
                environment[value["env"]] = "a-value"
    file = tmp_path / "refrain.yaml"
    file.write_text(yaml.safe_dump(complete))
    process = serve("--config", str(file), **environment)
    try:
        assert "status" in state(address(process))
    finally:
        assert process.stop() == 0, process.lines


@pytest.mark.parametrize(("page", "text"), POLICIES)
def test_policies_of_the_docs_are_taken(page: str, text: str, tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    assert PolicyFile(policy).problem is None, page


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
