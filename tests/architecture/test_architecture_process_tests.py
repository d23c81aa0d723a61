"""`make test` leaves out tests that start processes, and nothing else; `make test-all` has all."""

import ast
import re
from pathlib import Path

import pytest

from process_tests import FILES, FIXTURES, FOLDERS, KEPT, TESTS, is_left_out, starts_processes

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def functions(file: Path) -> set[str]:
    """Return the names of a file's functions."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, functions)}


def recipe(target: str) -> list[str]:
    """Return the commands of a target."""
    found = re.search(rf"^{target}:[^\n]*\n((?:\t[^\n]*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None, target
    return [line.strip() for line in found[1].splitlines()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_has_tests(folder):
    assert list((ROOT / folder).glob("test_*.py"))


@pytest.mark.parametrize("place", [*FILES, *TESTS, *KEPT.values()])
def test_each_file_and_test_exists(place):
    file, _, test = place.partition("[")[0].partition("::")
    assert (ROOT / file).is_file()
    assert not test or test in functions(ROOT / file)


def test_each_fixture_exists():
    places = [*(ROOT / "tests").rglob("*.py")]
    assert FIXTURES.keys() <= set().union(*map(functions, places))


def test_each_kind_of_process_keeps_a_test():
    assert KEPT.keys() >= {"chaos", "embeddings", "engine", "gateway", *FIXTURES.values()}
    for kind, test in KEPT.items():
        fixtures = [name for name, starts in FIXTURES.items() if starts == kind]
        assert starts_processes(test, fixtures), "there is no need to keep it"
        assert not is_left_out(test, fixtures)


def test_other_parameters_of_a_kept_test_are_left_out():
    test = KEPT["chaos"].partition("[")[0]
    assert is_left_out(f"{test}[another scenario]", ())
    assert is_left_out("tests/chaos/test_chaos.py::test_another", ())
    assert not is_left_out("tests/chaos_of_another_kind/test_chaos.py::test_it", ())


def test_the_marker_alone_tells_the_two_commands_apart():
    assert recipe("test") == ["$(pytest) -m 'not process' --hypothesis-profile=quick"]
    assert recipe("test-all") == ["$(pytest)"]
    command = MAKEFILE[MAKEFILE.index("define pytest") :].partition("endef")[0]
    assert not re.search(r"\s(-m|-k|--ignore\S*|--deselect)\b", command)
    assert "addopts" not in command


def test_ci_runs_all_tests():
    assert (ROOT / ".ci" / "run").read_text().endswith("exec make test-all\n")
