"""The release workflow: valid by GitHub's schema, true to package and Dockerfile. Not run here."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / ".github" / "workflows" / "release.yml"
JOBS: dict[str, Any] = yaml.safe_load(FILE.read_text())["jobs"]


def commands(job: str) -> str:
    return "\n".join(step.get("run", "") for step in JOBS[job]["steps"])


@pytest.mark.parametrize(
    "schema", ["vendor.github-workflows", "custom.github-workflows-require-timeout"]
)
def test_the_workflow_is_valid(schema):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, FILE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_job_that_publishes_may_ask_for_a_token_of_the_index():
    assert [name for name, job in JOBS.items() if "id-token" in job.get("permissions", ())] == [
        "pypi"
    ]
    assert JOBS["pypi"]["environment"] == "pypi"
    # It runs no code of the checkout, nor a command of its own.
    assert commands("pypi").strip() == ""
    assert "PYPI" not in re.sub(r"#.*", "", FILE.read_text())


def test_the_wheel_of_the_large_network_is_published_with_the_rest_and_not_without_weights():
    lines = commands("package").splitlines()
    build = lines.index("python -m build --wheel --outdir dist deploy/verifier")
    assert lines[build + 1 :][:2] == [
        "unzip -l dist/refrain_verifier-*.whl '*/model/words.safetensors'",
        "twine check --strict dist/*",
    ]


def test_images_are_those_that_compose_builds():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
    built = {
        (each["image"], each["build"]["target"], each["build"]["args"]["EXTRAS"])
        for each in services
        if "build" in each
    }
    images = JOBS["images"]["strategy"]["matrix"]["include"]
    assert built == {
        (f"refrain-{image['target']}:{image['device']}", image["target"], image["extras"])
        for image in images
    }
    for image in images:
        assert image["platforms"].startswith("linux/amd64")


def test_the_sbom_is_of_what_users_install():
    wheel = r'constraints\.txt "\$\(ls dist/refrain_gateway-\*\.whl\)\[(\S+)\]"'
    (extras,) = re.findall(wheel, commands("package"))
    # The extra `verifier` is the wheel beside it.
    assert "pip install --find-links dist " in commands("package")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*project["optional-dependencies"]}
    assert {*extras.split(",")} == known - {"dev", "docs", "gpu", "semantic"}
    (written,) = re.findall(r"--output-file (\S+)", commands("package"))
    uploaded = [
        step["with"]["path"] for step in JOBS["package"]["steps"] if "path" in step.get("with", ())
    ]
    assert uploaded == ["dist/", written]
