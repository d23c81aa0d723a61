"""Checkpoints in the layouts in which quantised models are published, made from plain ones.

Each packer follows its format's definition, and says what the packed matrix is worth.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FP8 = torch.float8_e4m3fn
_FP8_MAX = 448.0
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_PROJECTIONS = tuple(f"{each}_proj.weight" for each in ("q", "k", "v", "o", "gate", "up", "down"))

Packed = tuple[dict[str, Tensor], Tensor]
"""Tensors by suffix, and the matrix [out, in] that they stand for."""


def fp8_tensor(weight: Tensor) -> Packed:
    scale = weight.abs().amax() / _FP8_MAX
    return _fp8(weight, scale.view(1), scale, "weight_scale")


def fp8_channel(weight: Tensor) -> Packed:
    scales = weight.abs().amax(dim=1, keepdim=True) / _FP8_MAX
    return _fp8(weight, scales, scales, "weight_scale")


def fp8_block(weight: Tensor, block: int = 64) -> Packed:
    rows, columns = weight.shape
    grid = torch.zeros(math.ceil(rows / block), math.ceil(columns / block))
    for row in range(grid.shape[0]):
        for column in range(grid.shape[1]):
            tile = weight[row * block : (row + 1) * block, column * block : (column + 1) * block]
            grid[row, column] = tile.abs().amax() / _FP8_MAX
    spread = grid.repeat_interleave(block, 0).repeat_interleave(block, 1)[:rows, :columns]
    return _fp8(weight, grid, spread, "weight_scale_inv")


def _fp8(weight: Tensor, stored: Tensor, scales: Tensor, suffix: str) -> Packed:
    codes = (weight / scales).clamp(-_FP8_MAX, _FP8_MAX).to(FP8)
    return {"weight": codes, suffix: stored}, codes.float() * scales


def int8_channel(weight: Tensor) -> Packed:
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    codes = (weight / scales).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def gptq(weight: Tensor, *, bits: int = 4, group: int = 32, symmetric: bool = False) -> Packed:
    """AutoGPTQ's first version: columns of a row side by side, zeros less 1."""
    codes, zeros, scales, worth = _grouped(weight, bits, group, symmetric=symmetric)
    group = group if group > 0 else weight.shape[1]
    ones = sum(1 << (bits * place) for place in range(32 // bits))
    return {
        "qweight": _words(codes.t().reshape(-1, 32 // bits, len(weight)), bits, dim=1),
        # One is taken from each zero point of a word at once, borrows included.
        "qzeros": _words(zeros.t().reshape(zeros.shape[1], -1, 32 // bits), bits, dim=2) - ones,
        "scales": scales.t().contiguous().half(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // group,
    }, worth


def awq(weight: Tensor, *, group: int = 32) -> Packed:
    """AutoAWQ's gemm: eight rows of a column side by side, in an order of their own."""
    codes, zeros, scales, worth = _grouped(weight, 4, group, symmetric=False)
    order = torch.tensor(_AWQ_ORDER)

    def packed(values: Tensor) -> Tensor:
        return _words(values.t().reshape(values.shape[1], -1, 8)[..., order], 4, dim=2)

    return {
        "qweight": packed(codes),
        "qzeros": packed(zeros),
        "scales": scales.t().contiguous().half(),
    }, worth


def pack_quantized(weight: Tensor, *, group: int = 32, symmetric: bool = True) -> Packed:
    """compressed-tensors in four bits: eight columns of a row side by side, zeros by rows."""
    codes, zeros, scales, worth = _grouped(weight, 4, group, symmetric=symmetric)
    packed = {
        "weight_packed": _words(codes.view(len(weight), -1, 8), 4, dim=2),
        "weight_scale": scales.half(),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        packed["weight_zero_point"] = _words(zeros.view(-1, 8, zeros.shape[1]), 4, dim=1)
    return packed, worth


def _grouped(
    weight: Tensor, bits: int, group: int, *, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = weight.shape
    top = (1 << bits) - 1
    tiles = weight.view(rows, -1, group if group > 0 else columns)
    if symmetric:
        scales = (tiles.abs().amax(-1) / (top // 2)).half().float()
        zeros = torch.full_like(scales, (top + 1) // 2)
    else:
        low, high = tiles.amin(-1).clamp(max=0), tiles.amax(-1).clamp(min=0)
        scales = ((high - low) / top).half().float()
        zeros = (-low / scales).round().clamp(0, top)
    codes = (tiles / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, top)
    worth = (codes - zeros.unsqueeze(-1)) * scales.unsqueeze(-1)
    return codes.view(rows, columns).long(), zeros.long(), scales, worth.view(rows, columns)


def _words(values: Tensor, bits: int, dim: int) -> Tensor:
    """Pack ``values``, whose dimension ``dim`` is one word of 32 bits, lowest bits first."""
    total = sum(each << (bits * place) for place, each in enumerate(values.long().unbind(dim)))
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def compressed_tensors(
    strategy: str, kind: str = "float", layout: str | None = None, **weights: Any
) -> dict[str, Any]:
    """The ``quantization_config`` of llm-compressor."""
    return {
        "quant_method": "compressed-tensors",
        "format": layout or f"{kind}-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": kind,
                    "strategy": strategy,
                    "symmetric": True,
                    "dynamic": False,
                    **weights,
                },
                "input_activations": {"num_bits": 8, "dynamic": True, "strategy": "token"},
            }
        },
        "ignore": ["lm_head"],
    }


LAYOUTS: dict[str, tuple[Callable[[Tensor], Packed], dict[str, Any]]] = {
    "fp8 per tensor": (fp8_tensor, compressed_tensors("tensor")),
    "fp8 per channel": (fp8_channel, compressed_tensors("channel")),
    "fp8 in blocks": (fp8_block, {"quant_method": "fp8", "weight_block_size": [64, 64]}),
    "int8 per channel": (int8_channel, compressed_tensors("channel", "int")),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}),
    "gptq symmetric": (
        lambda weight: gptq(weight, group=-1, symmetric=True),
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True},
    ),
    "gptq of 8 bits": (
        lambda weight: gptq(weight, bits=8),
        {"quant_method": "gptq", "bits": 8, "group_size": 32},
    ),
    "pack-quantized": (
        pack_quantized,
        compressed_tensors("group", layout="pack-quantized", num_bits=4, group_size=32),
    ),
    "pack-quantized with zeros": (
        lambda weight: pack_quantized(weight, group=-1, symmetric=False),
        compressed_tensors("channel", layout="pack-quantized", num_bits=4, symmetric=False),
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
}


def quantize_checkpoint(directory: Path, layout: str) -> Path:
    """Pack the matrices of ``directory``; return a plain checkpoint of what they are worth."""
    pack, config = LAYOUTS[layout]
    plain = directory.with_name(f"{directory.name}-plain")
    plain.mkdir()
    stored: dict[str, Tensor] = {}
    worth: dict[str, Tensor] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        if not name.endswith(_PROJECTIONS) and ".experts." not in name:
            stored[name] = worth[name] = tensor
            continue
        packed, worth[name] = pack(tensor.float())
        stored |= {name.removesuffix("weight") + key: each for key, each in packed.items()}
    for path in directory.iterdir():
        if path.suffix == ".json":
            (plain / path.name).write_bytes(path.read_bytes())
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(values | {"quantization_config": config}))
    for path, tensors in ((directory, stored), (plain, worth)):
        # safetensors writes contiguous tensors only.
        save_file(
            {name: each.contiguous() for name, each in tensors.items()}, path / "model.safetensors"
        )
    return plain
