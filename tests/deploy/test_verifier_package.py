"""The package of the verifier's large network: its wheel, and that it fits the gateway."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from embeddings.encoder.model_files import VERIFIER_DIRECTORY
from embeddings.verify.calibration import parse_calibration
from embeddings.verify.directories import PACKAGE
from embeddings.verify.files import FILES_OF_SECOND, read_verifier

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "deploy" / "verifier"
MODEL = SOURCE / PACKAGE / "model"
GATEWAY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
MOST_BYTES = 10**8
"""Of a file in the repository, and of a file on PyPI."""
BUILD = """
import sys
from setuptools import build_meta
sys.argv = ["build"]
build_meta.build_wheel("dist")
"""


def build(folder):
    """Build the wheel from a copy; return its file."""
    copy = folder / "verifier"
    shutil.copytree(
        SOURCE, copy, ignore=shutil.ignore_patterns("*.egg-info", "build", "dist", "__pycache__")
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", BUILD], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (copy / "dist").glob("refrain_verifier-*.whl")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(build(tmp_path_factory.mktemp("verifier-package"))) as opened:
        yield opened


def test_both_distributions_have_one_version_and_the_extra_names_it():
    assert PROJECT["version"] == GATEWAY["version"]
    assert GATEWAY["optional-dependencies"]["verifier"] == [
        f"{PROJECT['name']}=={GATEWAY['version']}"
    ]


def test_it_asks_for_no_other_package_and_for_the_gateway_s_python():
    assert PROJECT["dependencies"] == []
    assert PROJECT["requires-python"] == GATEWAY["requires-python"]


def test_the_wheel_holds_no_code(wheel):
    code = [name for name in wheel.namelist() if name.endswith(".py")]
    assert code == [f"{PACKAGE}/__init__.py"]
    text = wheel.read(code[0]).decode().strip()
    assert re.fullmatch(r'"""[^"]+"""', text)


def test_the_metadata_is_what_an_index_shows(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    said = HeaderParser().parsestr(wheel.read(name).decode())
    assert said["Name"] == "refrain-verifier"
    assert said["License-Expression"] == "Apache-2.0"
    assert said.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert said["Description-Content-Type"] == "text/markdown"


def test_the_licence_is_the_gateway_s():
    assert (SOURCE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


SOURCES = re.findall(
    r"^\| (\S+) \| [\d,]+ \| [\d,]+ \| (.+) \| ([\w-]+/[\w.-]+)",
    (ROOT / "tools" / "verifier" / "SOURCES.md").read_text(),
    re.MULTILINE,
)
NOT_TRAINED_ON = {"time-sensitive-qa", "nlupp"}


@pytest.mark.parametrize("name", sorted(name for name, *_ in SOURCES))
def test_the_notice_names_each_source_that_the_network_learned_from(name):
    ((licence, origin),) = [found for source, *found in SOURCES if source == name]
    lines = [
        line
        for line in (SOURCE / "NOTICE").read_text().splitlines()
        if line.startswith(f"  {name}: ")
    ]
    if name in NOT_TRAINED_ON:
        assert lines == []
    else:
        (line,) = lines
        assert line.startswith(f"  {name}: {origin}")
        assert licence in line


def test_the_wheel_has_all_files_of_the_network(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {f"{PACKAGE}/model/{file.name}" for file in MODEL.iterdir()}
    assert names == {f"{PACKAGE}/__init__.py", *files}
    assert {Path(file).name for file in files} == {*FILES_OF_SECOND, "calibration.json"}
    for file in MODEL.iterdir():
        assert wheel.read(f"{PACKAGE}/model/{file.name}") == file.read_bytes()


def test_no_file_is_larger_than_code_hosts_and_indexes_take(wheel):
    sizes = {file.name: file.stat().st_size for file in MODEL.iterdir()}
    sizes[wheel.filename] = Path(wheel.filename).stat().st_size
    assert {name: size for name, size in sizes.items() if size >= MOST_BYTES} == {}


def test_the_network_is_for_the_shipped_small_one_and_has_a_calibration(monkeypatch):
    monkeypatch.syspath_prepend(SOURCE)
    files = read_verifier(VERIFIER_DIRECTORY)
    assert (files.name, files.fault) == ("refrain-verifier-large", "")
    data = (MODEL / "calibration.json").read_bytes()
    calibration = parse_calibration(data, "shipped", verifier=files.digest)
    assert calibration.threshold(0.01) is not None
