"""`refrain keys`: a file of gateway keys, edited by command."""

import stat
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from threading import Thread

import orjson
import pytest
from filelock import FileLock

from gateway.cli.main import main
from gateway.cli.operator import keys
from gateway.server.keys.auth import read_key_ring
from gateway.server.keys.limits import Budget

OLD = f"# ours\nold {sha256(b'gk-old').hexdigest()}   # since May\n"
EXPIRED = f"shop {sha256(b'gk-shop').hexdigest()} models=a,b expires=2020-01-31\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys"


@pytest.fixture
def command(file, capsys):
    """Run `refrain keys`; return code, output and errors."""

    def run(*arguments):
        code = main(["keys", *arguments, "--file", str(file)])
        captured = capsys.readouterr()
        return code, captured.out.strip(), captured.err

    return run


def ring(file):
    return read_key_ring(file.read_bytes(), "keys")


def test_a_new_key_is_shown_once_and_stored_as_its_digest(command, file):
    code, secret, said = command("add", "shop", "--models", "gpt-4o*", "--expires", "90d")
    assert code == 0
    assert secret.startswith("rk-")
    assert len(secret) == 46
    assert secret not in file.read_text() + said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = ring(file).find(secret)
    assert (key.name, key.models) == ("shop", ("gpt-4o*",))
    left = datetime.fromtimestamp(key.expires, UTC) - datetime.now(UTC)
    assert timedelta(days=89) < left < timedelta(days=91)


def test_an_edit_leaves_all_other_lines_and_the_mode_as_they_were(command, file):
    file.write_text(OLD)
    file.chmod(0o640)
    command("add", "shop")
    assert file.read_text().startswith(OLD)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    command("revoke", "shop")
    assert file.read_text() == OLD


def test_a_link_to_the_file_stays_a_link(command, file, tmp_path):
    real = tmp_path / "real"
    real.write_text(OLD)
    file.symlink_to(real)
    assert command("add", "shop")[0] == 0
    assert file.is_symlink()
    assert "shop" in real.read_text()


def test_rotation_keeps_the_attributes_and_ends_the_old_key(command, file):
    _, old, _ = command("add", "shop", "--models", "gpt-4o*")
    code, new, _ = command("rotate", "shop")
    assert code == 0
    assert ring(file).find(old) is None
    assert ring(file).find(new).models == ("gpt-4o*",)


def test_rotation_with_an_overlap_lets_the_old_key_end_later(command, file):
    file.write_text(OLD)
    _, new, said = command("rotate", "old", "--overlap", "1d")
    assert ring(file).find(new).expires is None
    assert ring(file).find("gk-old").expires > datetime.now(UTC).timestamp() + 80_000
    assert "# since May" in file.read_text()
    assert "the old key ends 20" in said


def test_new_limits_at_a_rotation_are_those_of_the_old_key_too(command, file):
    _, old, _ = command("add", "shop", "--rpm", "60", "--budget", "5Mtokens/day")
    _, new, _ = command("rotate", "shop", "--rpm", "90", "--overlap", "1d")
    for secret in (old, new):
        limits = ring(file).find(secret).limits
        assert (limits.rpm, limits.budget) == (90, (Budget(5_000_000, "day"),))


def test_an_expired_key_is_rotated_only_with_a_new_end(command, file):
    file.write_text(EXPIRED)
    assert command("rotate", "shop")[0] == 1
    assert command("rotate", "shop", "--expires", "90d")[0] == 0


def test_the_upstreams_account_is_closed_to_a_new_key_unless_it_is_opened(command, file):
    file.write_text(OLD)
    _, shop, _ = command("add", "shop")
    _, desk, _ = command("add", "desk", "--account", "open")
    _, old, _ = command("rotate", "old")
    accounts = [ring(file).find(secret).account for secret in (shop, desk, old)]
    assert accounts == ["closed", "open", None]
    _, shop, _ = command("rotate", "shop", "--account", "open")
    assert ring(file).find(shop).account == "open"


def test_the_list_shows_what_each_key_may_do_and_no_secret(command, file):
    file.write_text(OLD + EXPIRED)
    _, listed, _ = command("list")
    head, first, second = (line.split() for line in listed.splitlines())
    assert head == ["NAME", "KEY", "STATE", "MODELS", "EXPIRES"]
    assert first == ["old", sha256(b"gk-old").hexdigest()[:8], "valid", "-", "-"]
    assert second[2:] == ["expired", "a,b", "2020-01-31T00:00:00Z"]
    assert sha256(b"gk-shop").hexdigest() not in listed
    rows = orjson.loads(command("list", "--json")[1])
    assert [row["name"] for row in rows] == ["old", "shop"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("add", "old"), 1, "old has a key already: refrain keys rotate old replaces it"),
        (("add", "two words"), 2, "expected a name"),
        (("add", "shop", "--expires", "soon"), 2, "--expires: expected a date"),
        (("add", "shop", "--expires", "2020-01-31"), 2, "--expires: expected a time to come"),
        (("rotate", "old", "--expires", "2020-01-31"), 2, "2020-01-31T00:00:00Z has passed"),
        (("add", "shop", "--account", "own"), 2, "--account: expected open or closed"),
        (("add", "shop", "--budget", "5EUR/day"), 2, "--budget: expected a budget such as"),
        (("add", "shop", "--models", ","), 2, "--models: expected names or globs"),
        (("revoke", "shop"), 1, "no key of shop: there are old"),
        (("rotate", "shop"), 1, "no key of shop: there are old"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(command, file, arguments, code, told):
    file.write_text(OLD)
    found = command(*arguments)
    assert found[0] == code
    assert told in found[2]
    assert file.read_text() == OLD


def test_a_file_with_a_mistake_is_not_edited(command, file):
    file.write_text("shop gk-in-clear\n")
    code, _, said = command("add", "desk")
    assert code == 2
    assert f"{file}:1: expected NAME" in said
    assert "gk-in-clear" not in said


def test_a_file_that_is_not_there_is_made_by_add_alone(command, file):
    for arguments in (("list",), ("revoke", "shop"), ("rotate", "shop")):
        code, _, said = command(*arguments)
        assert code == 2
        assert "cannot be read" in said
    assert not file.exists()
    assert command("add", "shop")[0] == 0


def test_the_file_comes_from_the_settings(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "list"]) == 2
    assert "give --file FILE, or set gateway_keys" in capsys.readouterr().err
    (tmp_path / "refrain.yaml").write_text(f"gateway_keys: {file}\n")
    assert main(["keys", "add", "shop"]) == 0
    monkeypatch.setenv("REFRAIN_GATEWAY_KEYS", str(tmp_path / "others"))
    assert main(["keys", "add", "desk"]) == 0
    assert "shop" in file.read_text()
    assert "desk" in (tmp_path / "others").read_text()


def test_edits_at_the_same_time_lose_nothing(file, capsys):
    names = [f"n{number}" for number in range(8)]
    edits = [Thread(target=main, args=(["keys", "add", n, "--file", str(file)],)) for n in names]
    for each in edits:
        each.start()
    for each in edits:
        each.join()
    assert sorted(line.split()[0] for line in file.read_text().splitlines()) == names


def test_a_file_that_is_being_edited_is_said_to_be(command, file, monkeypatch):
    monkeypatch.setattr(keys, "LOCK_SECONDS", 0.0)
    with FileLock(f"{file}.lock"):
        code, _, said = command("add", "shop")
    assert code == 1
    assert "another command is editing it" in said


def test_a_folder_that_cannot_be_written_is_said(command, file, monkeypatch):
    def refuse(self, target):
        raise OSError(16, "Device or resource busy")

    file.write_text(OLD)
    monkeypatch.setattr("pathlib.Path.replace", refuse)
    code, _, said = command("add", "shop")
    assert code == 1
    assert f"{file}: cannot be written: Device or resource busy" in said
    assert [each.name for each in file.parent.glob(".keys*")] == []
