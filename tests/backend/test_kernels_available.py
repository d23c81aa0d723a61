"""Where Triton cannot compile, the reason is known before a kernel is launched."""

import os
import subprocess
import sys

import pytest

from backend.kernels.available import unavailable_reason


@pytest.fixture(autouse=True)
def asked_anew():
    unavailable_reason.cache_clear()
    yield
    unavailable_reason.cache_clear()


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A host whose only programs are those that a test puts into the folder returned."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put(folder, program):
    (folder / program).touch(mode=0o755)


@pytest.mark.parametrize("program", ["gcc", "clang"])
def test_a_compiler_is_enough(host, program):
    put(host, program)
    assert unavailable_reason() is None


def test_a_host_without_a_compiler_is_told_what_to_install(host):
    assert unavailable_reason() == "no C compiler; install gcc"


def test_a_compiler_of_another_name_is_named_by_cc(host, monkeypatch):
    put(host, "x86_64-gcc")
    monkeypatch.setenv("CC", "x86_64-gcc")
    assert unavailable_reason() is None


def test_a_wrong_cc_is_named(host, monkeypatch):
    put(host, "gcc")
    monkeypatch.setenv("CC", "icc")
    assert unavailable_reason() == "CC names icc, which is not there"


def test_missing_headers_are_named(host, monkeypatch):
    put(host, "gcc")
    monkeypatch.setattr(
        "backend.kernels.available.sysconfig.get_paths", lambda: {"include": str(host)}
    )
    assert unavailable_reason().startswith(f"no Python.h in {host}")


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr("backend.kernels.available.find_spec", lambda _: None)
    assert unavailable_reason() == "Triton is not installed"


def test_asking_imports_neither_triton_nor_torch():
    script = (
        "import sys; from backend.kernels.available import unavailable_reason;"
        "unavailable_reason(); sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert done.returncode == 0
