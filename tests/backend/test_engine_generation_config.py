"""What a model's makers recommend is used for what a request leaves open, and for no more."""

import json
from pathlib import Path
from typing import Any

import pytest

from backend.engine.model_files import recommended_sampling
from backend.models.config import ModelLoadError
from backend.scheduler.request import SamplingParams


def write(directory: Path, config: Any) -> Path:
    (directory / "generation_config.json").write_text(json.dumps(config))
    return directory


def test_without_the_file_openai_defaults_hold(tmp_path: Path):
    assert recommended_sampling(tmp_path) == SamplingParams(temperature=1.0, top_p=1.0, top_k=0)


def test_the_file_may_be_left_out_of_account(tmp_path: Path):
    write(tmp_path, {"temperature": 0.6})
    for chosen, expected in (("auto", 0.6), ("none", 1.0)):
        assert recommended_sampling(tmp_path, chosen).temperature == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"do_sample": False, "temperature": 0.6}, SamplingParams(temperature=0.0)),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20},
            SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
        ),
        ({"top_k": None, "temperature": 1}, SamplingParams()),
    ],
)
def test_what_the_file_recommends(tmp_path: Path, config: Any, expected: SamplingParams):
    assert recommended_sampling(write(tmp_path, config)) == expected


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"temperature": "hot"}, "temperature: expected a number of 0 to 2, got 'hot'"),
        ({"top_p": 1.5}, "top_p: expected a number of 0 to 1, got 1.5"),
        ({"top_k": True}, "top_k: expected a number"),
        ([1], "expected a JSON object"),
    ],
)
def test_a_wrong_file_is_told_by_name_and_key(tmp_path: Path, config: Any, told: str):
    with pytest.raises(ModelLoadError, match=r"generation_config\.json") as error:
        recommended_sampling(write(tmp_path, config))
    assert told in str(error.value)


def test_a_file_that_is_not_json_is_told(tmp_path: Path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="not valid JSON"):
        recommended_sampling(tmp_path)
