"""The table of what the engine serves names what the code takes, and the help prints it."""

import re
from dataclasses import fields

import pytest
from click.testing import CliRunner

from backend.__main__ import cli
from backend.models.config import ModelLoadError
from backend.models.families import FAMILIES
from backend.models.quantization.formats import checkpoint_format
from backend.served import ROWS
from backend.settings import EngineOptions

CELLS = {row.what: row for row in ROWS}


def test_every_family_is_named():
    assert re.findall(r"`(\w+)`", CELLS["models by our own code"].served) == list(FAMILIES)


def test_every_format_of_checkpoints_is_named():
    with pytest.raises(ModelLoadError) as refusal:
        checkpoint_format({"quantization_config": {"quant_method": "none"}}, "config.json")
    methods = re.findall(r"[\w-]+", str(refusal.value).partition("supported; ")[2])[:-1]
    methods.remove("and")
    assert len(methods) == 5
    served = CELLS["weights in 8 bits"].served + CELLS["weights in 4 bits"].served
    assert all(f"`{method}`" in served for method in methods)


@pytest.mark.parametrize(
    ("option", "row"),
    [("dtype", "weights"), ("kv_dtype", "KV cache"), ("quantization", "weights in 8 bits")],
)
def test_every_choice_of_an_option_is_named(option, row):
    (flag,) = (each.metadata["flag"] for each in fields(EngineOptions) if each.name == option)
    for choice in set(flag["choices"]) - {"auto"}:
        assert re.search(rf"\b{choice}\b", CELLS[row].served), choice


def test_every_gpu_that_kernels_are_compiled_for_is_named():
    pytest.importorskip("triton", reason="Triton is not installed")
    from compiled_kernels import SHARED_MEMORY

    named = re.findall(r"\b\d+\.\d\b", CELLS["NVIDIA GPUs"].untested)
    assert named == [f"{each // 10}.{each % 10}" for each in sorted(SHARED_MEMORY)]


def test_the_help_prints_every_cell():
    asked = CliRunner().invoke(cli, ["--help"], terminal_width=90)
    said = " ".join(asked.output.split())
    for row in ROWS:
        for cell in row:
            assert cell.replace("`", "") in said
