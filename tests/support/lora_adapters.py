"""Adapters as PEFT writes them, and the checkpoints that one gets by merging them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def write_adapter(
    directory: Path,
    base: Path,
    *,
    seed: int,
    rank: int = 4,
    alpha: float = 16.0,
    targets: Sequence[str] = (*ATTENTION, *MLP),
    size: float = 0.2,
    **keys: Any,
) -> Path:
    """Write a random adapter for the checkpoint ``base``; ``keys`` are more of its config."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    ranks: Mapping[str, int] = keys.get("rank_pattern", {})
    for name, weight in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if weight.ndim != 2 or not module.endswith(tuple(f".{each}" for each in targets)):
            continue
        own = next((value for key, value in ranks.items() if module.endswith(key)), rank)
        low = f"base_model.model.{module}.lora_"
        tensors[f"{low}A.weight"] = torch.randn(own, weight.shape[1], generator=generator) * size
        tensors[f"{low}B.weight"] = torch.randn(weight.shape[0], own, generator=generator) * size
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.1,
        "target_modules": list(targets),
        "bias": "none",
        "inference_mode": True,
        "use_dora": False,
        "modules_to_save": None,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config | keys))
    return directory


def merge(base: Path, adapter: Path, directory: Path) -> Path:
    """Write the checkpoint ``base`` with ``adapter`` in its weights, as PEFT's merge does."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    ranks, alphas = config.get("rank_pattern", {}), config.get("alpha_pattern", {})
    low = load_file(adapter / "adapter_model.safetensors")
    weights = load_file(base / "model.safetensors")
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        a = low.get(f"base_model.model.{module}.lora_A.weight")
        if a is None:
            continue
        b = low[f"base_model.model.{module}.lora_B.weight"]
        rank = next((value for key, value in ranks.items() if module.endswith(key)), config["r"])
        alpha = next(
            (value for key, value in alphas.items() if module.endswith(key)), config["lora_alpha"]
        )
        assert len(a) == rank
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        weights[name] = weight + (scale * b.double() @ a.double()).to(weight.dtype)
    directory.mkdir(parents=True)
    for file in base.iterdir():
        if file.suffix == ".json":
            (directory / file.name).write_bytes(file.read_bytes())
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory
