"""The shipped verifier's second network: found in its package, and used if it fits."""

import json
import sys

import pytest
from tiny_verifier import write_tiny_second, write_tiny_verifier

from embeddings.messages import MAX_FIELD
from embeddings.scoring import open_pair_scores
from embeddings.verify import directories
from embeddings.verify.calibration import calibrated, written_calibration
from embeddings.verify.directories import PACKAGE, SECOND, second_directory
from embeddings.verify.files import read_verifier
from embeddings.verify.verifier import load_verifier
from gateway.semantic.calibrations import Calibrations

CALIBRATION = "calibration.json"


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A small network of random weights in the place of the shipped one."""
    directory = write_tiny_verifier(tmp_path / "shipped")
    monkeypatch.setattr(directories, "VERIFIER_DIRECTORY", directory)
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    return directory


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose import fails: nobody may import it."""
    folder = tmp_path / "site" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def install(first, package, **settings):
    """Move a second network for `first` into the package; return its folder."""
    return write_tiny_second(first, gate=-1e9, **settings).rename(package / "model")


def calibrate(directory, verifier):
    points = [(0.5, False)] * 300
    written = written_calibration(calibrated(points, verifier=verifier))
    (directory / CALIBRATION).write_bytes(written)


def test_it_is_found_in_its_package_which_is_not_imported(shipped, package):
    model = install(shipped, package)
    assert second_directory(shipped) == model
    verifier = load_verifier(shipped, threads=1)
    assert (verifier.name, verifier.fault) == ("tiny second", "")
    assert verifier.digest != read_verifier(shipped, alone=True).digest
    assert PACKAGE not in sys.modules


def test_another_way_to_the_same_folder_is_the_shipped_verifier(shipped, package, monkeypatch):
    model = install(shipped, package)
    monkeypatch.chdir(shipped.parent)
    assert second_directory(shipped.relative_to(shipped.parent)) == model


def test_where_it_is_not_installed_the_small_network_serves_without_a_fault(shipped, monkeypatch):
    monkeypatch.setattr("embeddings.encoder.model_files.find_spec", lambda name: None)
    assert second_directory(shipped) is None
    files = read_verifier(shipped)
    assert (files.name, files.second, files.fault) == ("tiny", None, "")


def test_a_folder_beside_the_shipped_network_is_not_looked_at(shipped, monkeypatch):
    monkeypatch.setattr("embeddings.encoder.model_files.find_spec", lambda name: None)
    write_tiny_second(shipped, gate=-1.0)
    assert read_verifier(shipped).name == "tiny"


def test_another_verifier_does_not_get_the_installed_network(shipped, package, tmp_path):
    install(shipped, package)
    other = write_tiny_verifier(tmp_path / "other")
    assert second_directory(other) is None
    assert second_directory(write_tiny_second(other, gate=-1.0).parent) == other / SECOND


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda model: model.rename(model.with_name("gone")), "holds no config.json"),
        (lambda model: (model / "words.safetensors").unlink(), "holds no words.safetensors"),
        (lambda model: (model / "model.safetensors").write_bytes(b"short"), "cannot read"),
        (lambda model: (model / "config.json").write_text("{"), "cannot read"),
        (lambda model: other_first(model / "config.json"), "was made for another verifier"),
    ],
)
async def test_one_that_is_damaged_or_for_another_small_network_is_a_fault(
    shipped, package, damage, fault
):
    damage(install(shipped, package))
    scores = await open_pair_scores(shipped, 1)
    assert scores.name == "tiny"
    assert scores.digest == read_verifier(shipped, alone=True).digest
    assert fault in scores.fault
    assert PACKAGE in scores.fault
    assert len(scores.fault) <= MAX_FIELD
    assert not isinstance(await scores.score([("Who is it?", "Who was it?")]), str)


def other_first(config):
    config.write_text(json.dumps({**json.loads(config.read_text()), "first": "0" * 64}))


def test_a_namesake_that_is_no_package_counts_as_none(shipped, tmp_path, monkeypatch):
    (tmp_path / "site" / PACKAGE / "model").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:3])  # no finder of an editable package
    assert second_directory(shipped) is None


def test_a_gateway_knows_the_calibrations_without_and_with_it(shipped, package, tmp_path):
    model = install(shipped, package)
    both, alone = (read_verifier(shipped, alone=alone).digest for alone in (False, True))
    calibrate(shipped, alone)
    calibrate(model, both)
    calibrations = Calibrations(tmp_path)
    assert calibrations.of(alone).verifier == alone
    assert calibrations.of(both).verifier == both


def test_a_running_gateway_reads_the_calibration_of_one_that_is_installed_later(
    shipped, package, tmp_path
):
    model = install(shipped, package)
    both, alone = (read_verifier(shipped, alone=alone).digest for alone in (False, True))
    calibrate(shipped, alone)
    calibrations = Calibrations(tmp_path)
    assert calibrations.of(alone) is not None
    calibrate(model, both)
    calibrations.of(both)
    assert calibrations.of(both).verifier == both
