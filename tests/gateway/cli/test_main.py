"""The command as a person meets it: help, and one line and an exit code for what is wrong."""

import os
import pkgutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import click
import pytest

from gateway.cli.main import cli, main
from gateway.cli.options import Command

ROOT = Path(__file__).parents[3]
URL = "http://127.0.0.1:9/v1"


@dataclass
class Done:
    """What a command has come to."""

    code: int
    out: str
    told: str
    """Lines on standard error, and lines of the log."""


Refrain = Callable[..., Done]


@pytest.fixture
def refrain(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Refrain:
    """Run the command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gateway.cli.process.launch.configure_logging", lambda *_: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    caplog.set_level("INFO")

    def run(*argv: str) -> Done:
        code = main(argv)
        out, told = capfd.readouterr()
        logged = "".join(f"{record.getMessage()}\n" for record in caplog.records)
        return Done(code, out, told + logged)

    return run


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield every command and group, and the words that run it."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(CONTEXT):
            yield from commands(command.get_command(CONTEXT, name), *path, name)


CONTEXT = click.Context(cli)
COMMANDS = dict(commands(cli))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_helps_itself(refrain: Refrain, path: tuple[str, ...]):
    done = refrain(*path, "--help")
    assert (done.code, done.told) == (0, "")
    assert f"usage: {' '.join(('refrain', *path))}" in done.out.lower()
    assert "..." not in done.out.partition("\nCommands:\n")[2], "a summary was cut off"


@pytest.mark.parametrize(
    "path", [path for path, each in COMMANDS.items() if getattr(each, "run", "")], ids=" ".join
)
def test_every_command_has_a_function_that_takes_its_options(path: tuple[str, ...]):
    command = COMMANDS[path]
    function = pkgutil.resolve_name(f"gateway.cli.{command.run}")
    names = [each.name for each in command.params if each.expose_value]
    signature(function).bind(**dict.fromkeys(names))


def test_version(refrain: Refrain):
    done = refrain("--version")
    assert (done.code, done.told) == (0, "")
    assert done.out.startswith("refrain 0.")


def test_a_process_ends_with_one_line_and_the_exit_code(tmp_path: Path):
    command = [sys.executable, "-m", "gateway.cli", "serve", "--upstream", URL, "--port", "0"]
    command += ["--policy", "none.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "refrain: policy: none.yaml: cannot be read: No such file or directory\n"


def fails(done: Done, code: int, *told: str) -> None:
    assert done.code == code
    for text in told:
        assert text in done.told


def test_no_command_is_bad_usage(refrain: Refrain):
    fails(refrain(), 2, "Usage: refrain")


def test_unknown_flag_is_bad_usage(refrain: Refrain):
    fails(refrain("serve", "--nothing"), 2, "No such option '--nothing'.")


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (["sevre"], "serve"),
        (["keys", "rotat"], "rotate"),
        (["usage", "--by", "modle"], "model"),
        (["serve", "--confg", "a"], "--config"),
    ],
)
def test_a_typo_is_told_with_the_nearest_word(refrain: Refrain, argv: list[str], near: str):
    fails(refrain(*argv), 2, f"Did you mean '{near}'?")


def test_a_word_that_is_near_nothing_gets_no_proposal(refrain: Refrain):
    done = refrain("xyzzy")
    fails(done, 2, "No such command 'xyzzy'.")
    assert "Did you mean" not in done.told


@pytest.mark.parametrize(
    "argv",
    [
        ["usage", "--csv", "--json"],
        ["usage", "--gateway", "http://a", "--data-dir", "b"],
        ["semantic", "report", "--data-dir", "b", "--gateway", "http://a"],
    ],
)
def test_options_that_exclude_one_another_are_told(refrain: Refrain, argv: list[str]):
    fails(refrain(*argv), 2, "exclude one another.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(refrain: Refrain, shell: str):
    done = refrain("completion", shell)
    assert (done.code, done.told) == (0, "")
    assert f"_REFRAIN_COMPLETE={shell}_complete" in done.out


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("refrain st", ["plain,status"]),
        ("refrain keys r", ["plain,revoke", "plain,rotate"]),
        ("refrain usage --by m", ["plain,model"]),
        ("refrain backend --tar", ["plain,--target-ttft-ms", "plain,--target-itl-ms"]),
        ("refrain estimate lo", ["file,lo"]),
    ],
)
def test_a_shell_completes_commands_options_and_files(words: str, completed: list[str]):
    environment = {
        **os.environ,
        "_REFRAIN_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, completed, "")


def test_no_upstream_is_bad_usage(refrain: Refrain):
    fails(refrain("serve"), 2, "refrain: no upstream: give --upstream URL")


def test_an_unknown_key_in_the_settings_file(refrain: Refrain, tmp_path: Path):
    (tmp_path / "refrain.yaml").write_text("upstraem: http://a/v1\n")
    fails(refrain("serve"), 2, "refrain.yaml:1: upstraem: expected")


def test_a_port_in_use_is_one_line(refrain: Refrain):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = refrain("serve", "--upstream", URL, "--port", port)
    fails(done, 1, f"refrain: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert len(done.told.splitlines()) == 1


def test_a_wrong_policy_is_exit_2_with_file_line_and_key(refrain: Refrain, tmp_path: Path):
    (tmp_path / "policy.yaml").write_text("version: 1\ndefault:\n  freshness: soon\n")
    done = refrain("serve", "--upstream", URL, "--port", "0", "--policy", "policy.yaml")
    fails(done, 2, "refrain: policy.yaml:3: default.freshness: expected")
    assert all(line.startswith("refrain: policy.yaml:") for line in done.told.splitlines())
    fails(refrain("policy", "check", "policy.yaml"), 2, "policy.yaml:3")


def test_a_wrong_file_of_prices_is_exit_2_with_file_line_and_column(
    refrain: Refrain, tmp_path: Path
):
    (tmp_path / "prices.csv").write_text("model,input,output,cached_input\nm,cheap,2,\n")
    (tmp_path / "refrain.yaml").write_text("prices: prices.csv\n")
    done = refrain("serve", "--upstream", URL, "--port", "0")
    fails(done, 2, "refrain: prices.csv:2: input: expected dollars for a million tokens")
    (tmp_path / "prices.csv").unlink()
    done = refrain("serve", "--upstream", URL, "--port", "0")
    fails(done, 2, "refrain: prices: prices.csv: cannot be read: No such file or directory")


def test_a_wrong_file_of_keys_is_exit_2_with_file_and_line_and_without_the_key(
    refrain: Refrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "keys").write_text("# who\nshop sk-in-clear\n")
    monkeypatch.setenv("REFRAIN_GATEWAY_KEYS", "keys")
    done = refrain("serve", "--upstream", URL, "--port", "0")
    fails(done, 2, "refrain: keys:2: expected NAME and the SHA-256 of a key")
    assert "sk-in-clear" not in done.told


def test_a_wrong_secret_is_exit_2_with_its_variable_and_without_its_value(
    refrain: Refrain, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REFRAIN_ENCRYPTION_KEYS", "sk-in-clear")
    done = refrain("serve", "--upstream", URL, "--port", "0")
    fails(done, 2, "refrain: REFRAIN_ENCRYPTION_KEYS: item 1: expected NAME:BASE64")
    assert "sk-in-clear" not in done.told


@pytest.mark.parametrize(
    "argv",
    [
        ["audit", "--gateway", "foo"],
        ["warm", "faq.jsonl", "--gateway", "ftp://a"],
        ["policy", "explain", "--gateway", "http://a:b", "request.json"],
    ],
)
def test_a_gateway_that_is_no_url_is_bad_usage(refrain: Refrain, argv: list[str]):
    fails(refrain(*argv), 2, "expected a URL such as http://127.0.0.1:8080, got")


def test_a_data_dir_that_cannot_be_made_is_one_line(refrain: Refrain, tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = refrain("serve", "--upstream", URL, "--port", "0", "--data-dir", "file/data")
    fails(done, 1, "the data directory file/data cannot be made: Not a directory")
    assert len(done.told.splitlines()) == 1


def test_an_unknown_variable_is_told_with_the_nearest(
    refrain: Refrain, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REFRAIN_POLCY", "x.yaml")
    done = refrain("serve")
    fails(done, 2, "warning: REFRAIN_POLCY is not a setting; is REFRAIN_POLICY meant?")


def test_the_demo_reads_the_settings_file_too(refrain: Refrain, tmp_path: Path):
    (tmp_path / "refrain.yaml").write_text("port: many\n")
    fails(refrain("demo"), 2, "refrain: refrain.yaml:1: port:")


def test_a_data_dir_that_is_a_file_is_told(refrain: Refrain, tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = refrain("serve", "--upstream", URL, "--port", "0", "--data-dir", "file")
    fails(done, 2, "the data directory file is a file; give a folder with --data-dir")


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("DECISION_LOG", "none/log.jsonl", "decision_log: none is no folder; make it, or"),
        ("DECISION_LOG", ".", "decision_log: . is a folder; give a file"),
        ("STORE", "rediss://a?ssl_ca_certs=none", "store: ssl_ca_certs: none cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_before_anything_listens(
    refrain: Refrain, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
):
    monkeypatch.setenv(f"REFRAIN_{variable}", value)
    done = refrain("serve", "--upstream", URL, "--port", "0")
    fails(done, 2, f"refrain: {told}")
    assert len(done.told.splitlines()) == 1


def test_a_key_that_is_not_set_is_told_before_anything_listens(refrain: Refrain, tmp_path: Path):
    (tmp_path / "keys").write_text(f"team {'ab' * 32}\n")
    (tmp_path / "refrain.yaml").write_text(
        f"gateway_keys: keys\nupstreams: [{{url: {URL}, name: a, api_key_env: NOT_SET_KEY}}]\n"
    )
    done = refrain("serve", "--port", "0")
    fails(done, 2, "upstream a: api_key_env: the environment variable NOT_SET_KEY is not set")
    assert "listening" not in done.told
