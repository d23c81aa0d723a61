"""What a model's makers recommend for generating with it: ``generation_config.json``.

As other engines do, a request that does not say how to sample is sampled so.
"""

import json
from pathlib import Path
from typing import Any

from backend.models.config import ModelLoadError
from backend.scheduler.request import SamplingParams


def recommended_sampling(directory: Path) -> SamplingParams:
    """Return what the file says of sampling, OpenAI's defaults for what it lacks.

    ``do_sample: false`` recommends greedy decoding. Raises ModelLoadError naming file and key.
    """
    path = directory / "generation_config.json"
    config = _read(path)
    if config.get("do_sample") is False:
        return SamplingParams(temperature=0.0)
    default = SamplingParams()
    return SamplingParams(
        temperature=_number(path, config, "temperature", default.temperature, 2.0),
        top_p=_number(path, config, "top_p", default.top_p, 1.0),
        top_k=int(_number(path, config, "top_k", default.top_k, float("inf"))),
        min_p=_number(path, config, "min_p", default.min_p, 1.0),
        repetition_penalty=_number(path, config, "repetition_penalty", 1.0, float("inf")) or 1.0,
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{path}: expected a JSON object")
    return config


def _number(path: Path, config: dict[str, Any], key: str, default: float, most: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ModelLoadError(f"{path}: {key}: expected a number of 0 to {most:g}, got {value!r}")
    return float(value)
