"""The systemd units start programs with flags that exist."""

import shlex
from configparser import ConfigParser
from pathlib import Path

from parsed_command import parsed, parsed_backend

from gateway.cli.process.child_process import STOP_SECONDS
from gateway.settings import load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"


def unit(name: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / name).read_text())
    return parser


def test_the_gateway_unit():
    service = unit("refrain-gateway.service")["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/refrain/bin/refrain"
    options = parsed(arguments)
    settings = load_settings({"upstream": options.upstream}, {}, None)
    assert settings.upstream
    assert str(options.data_dir) == f"/var/lib/{service['StateDirectory']}"
    drained = settings.drain_delay + settings.drain_timeout
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    # The processes in front end before those behind.
    assert float(service["TimeoutStopSec"]) > drained + 2 * STOP_SECONDS


def test_the_engine_unit():
    service = unit("refrain-backend.service")["Service"]
    program, subcommand, *arguments = shlex.split(service["ExecStart"])
    assert (program, subcommand) == ("/opt/refrain/bin/refrain", "backend")
    settings = parsed_backend(arguments)
    assert settings.model == "Qwen/Qwen3-0.6B"
    assert float(service["TimeoutStopSec"]) > settings.drain_delay + settings.drain_timeout
    assert f"HF_HOME=/var/cache/{service['CacheDirectory']}" in service["Environment"]
