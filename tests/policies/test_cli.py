"""``refrain policy check`` and ``schema``: exit codes, and what goes where."""

import json
from pathlib import Path

import pytest

import policies
from gateway.cli.main import main
from policies.format.load import json_schema

DEFAULT = str(Path(policies.__file__).parent / "default.yaml")


def test_a_valid_file_gets_one_line(capsys):
    assert main(["policy", "check", DEFAULT]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{DEFAULT}: valid, 0 rules and the default, generation 0\n", "")


def test_each_file_is_checked_and_one_bad_one_fails_all(capsys, tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("version: 1\ndefault:\n  exact: maybe\n")
    assert main(["policy", "check", str(broken), DEFAULT]) == 2
    out, err = capsys.readouterr()
    assert out.startswith(DEFAULT)
    assert f"{broken}:3: default.exact: expected on or off, got 'maybe'\n" in err
    assert len(err.splitlines()) == 5


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_gets_one_line(capsys, tmp_path, make, reason):
    file = tmp_path / "p.yaml"
    make(file)
    assert main(["policy", "check", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}: {reason}\n"


def test_a_file_that_is_no_text(capsys, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_bytes(b"\n\xff")
    assert main(["policy", "check", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}:2: expected UTF-8 text, got the byte 0xff\n"


def test_schema_prints_the_schema(capsys):
    assert main(["policy", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 2), (["check"], 2), (["nonsense"], 2), (["--help"], 0), (["check", "--help"], 0)],
)
def test_usage(capsys, arguments, code):
    assert main(["policy", *arguments]) == code
    out, err = capsys.readouterr()
    assert "Usage: refrain policy" in (err if code else out)
