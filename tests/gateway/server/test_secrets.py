"""The secret in the data directory: one for all, whole, private."""

import logging
import os
import subprocess
import sys
import threading

import pytest

from gateway.server.open.secrets import SecretError, load_or_create_secret


def test_it_is_made_once_and_kept(tmp_path, caplog):
    secret = load_or_create_secret(tmp_path)
    assert len(secret) == 32
    assert load_or_create_secret(tmp_path) == secret
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert caplog.records == []


def test_two_directories_have_different_ones(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert load_or_create_secret(tmp_path / "a") != load_or_create_secret(tmp_path / "b")


def test_threads_that_start_at_once_agree(tmp_path):
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        barrier = threading.Barrier(8)
        found = []

        def start(folder=folder, barrier=barrier, found=found):
            barrier.wait()
            found.append(load_or_create_secret(folder))

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(found)) == 1
        assert [each.name for each in folder.iterdir()] == ["secret"]


def test_processes_that_start_at_once_agree(tmp_path):
    script = (
        "import sys; from pathlib import Path; sys.stdin.readline();"
        "from gateway.server.open.secrets import load_or_create_secret;"
        "print(load_or_create_secret(Path(sys.argv[1])).hex())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert {process.communicate()[0].strip() for process in processes} == {
        load_or_create_secret(tmp_path).hex()
    }


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_file_of_another_size_is_refused_and_kept(tmp_path, size):
    path = tmp_path / "secret"
    path.write_bytes(b"s" * size)
    with pytest.raises(SecretError, match=r"secret: expected 32 bytes, got (0|31|more than 32);"):
        load_or_create_secret(tmp_path)
    assert path.read_bytes() == b"s" * size


def test_what_others_may_read_is_warned_about(tmp_path, caplog):
    path = tmp_path / "secret"
    path.write_bytes(b"s" * 32)
    path.chmod(0o640)
    assert load_or_create_secret(tmp_path) == b"s" * 32
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"{path} may be read by others (mode 640); run chmod 600 on it"


def test_a_directory_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SecretError, match="No such file"):
        load_or_create_secret(tmp_path / "absent")


def test_a_failed_first_try_leaves_no_draft(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(SecretError, match="Operation not permitted"):
        load_or_create_secret(tmp_path)
    assert list(tmp_path.iterdir()) == []
