"""The two scripts that the image uses, run as the image runs them."""

import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "deploy" / script, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.fixture
def server() -> Iterator[str]:
    """A server whose paths are the status to answer with."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path.strip("/")))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_healthy(server):
    done = run("healthcheck.py", f"{server}/200")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_proxy_in_the_environment_is_not_asked(server):
    assert run("healthcheck.py", f"{server}/200", http_proxy="http://127.0.0.1:9").returncode == 0


def test_unhealthy_status(server):
    done = run("healthcheck.py", f"{server}/503")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "503" in done.stderr


def test_nobody_listens(server):
    # Port 9 (discard) of a machine that runs tests answers nobody.
    done = run("healthcheck.py", "http://127.0.0.1:9/healthz")
    assert done.returncode == 1
    assert "refused" in done.stderr


def test_healthcheck_wants_one_url():
    assert run("healthcheck.py").returncode == 2


def test_requirements_are_those_of_the_extras_and_of_the_extras_that_they_name():
    done = run("requirements.py", str(ROOT / "pyproject.toml"), "cpu,redis")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras["cpu"][0] == "refrain-gateway[semantic]"
    assert done.stdout.splitlines() == [
        *project["dependencies"],
        *extras["semantic"],
        *extras["cpu"][1:],
        *extras["redis"],
    ]


def test_the_verifier_s_large_network_is_none_since_the_image_builds_it():
    files = str(ROOT / "pyproject.toml")
    redis, both = (run("requirements.py", files, extras) for extras in ("redis", "redis,verifier"))
    assert (both.returncode, both.stdout) == (0, redis.stdout)


def test_requirements_of_an_unknown_extra():
    done = run("requirements.py", str(ROOT / "pyproject.toml"), "tpu")
    assert done.returncode == 2
    assert "tpu" in done.stderr
    assert run("requirements.py").returncode == 2
