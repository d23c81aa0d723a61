"""Checkpoints in Hugging Face layout: find the directory, read the tensors, fuse them.

Every tensor's presence and shape is checked, and a refusal names file and tensor.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend.models.config import DecoderConfig, parse_config
from backend.models.decoder import DecoderLayer, DecoderWeights
from backend.models.errors import ModelLoadError
from backend.models.layers import Linear, RMSNorm
from backend.models.rotary import interleave

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


def resolve_model(model: str) -> Path:
    """Return the directory of ``model``, a directory or a hub id that is downloaded if need be.

    Raises ModelLoadError.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelLoadError(f"{model}: no such directory")
    # Imported here because it is slow to import and a model directory does not need it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except (OSError, ValueError, HFValidationError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelLoadError(
            f"{model}: no such directory, and the hub does not provide it: {reason}"
        ) from error


def load_config(directory: Path) -> DecoderConfig:
    """Read ``config.json``. Raises ModelLoadError."""
    path = directory / "config.json"
    return parse_config(_read_json(path), str(path))


def load_weights(
    directory: Path, config: DecoderConfig, *, device: torch.device, dtype: torch.dtype
) -> DecoderWeights:
    """Read all tensors, cast and move them. Raises ModelLoadError."""
    checkpoint = _Checkpoint(directory, device, dtype)
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = checkpoint.tensor("model.embed_tokens.weight", (vocab, hidden))
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(
            _load_layer(checkpoint, config, f"model.layers.{index}.")
            for index in range(config.num_layers)
        ),
        final_norm=RMSNorm(checkpoint.tensor("model.norm.weight", (hidden,)), config.rms_eps),
        head=Linear(
            embedding
            if config.tied_embeddings
            else checkpoint.tensor("lm_head.weight", (vocab, hidden))
        ),
    )


class _Checkpoint:
    """Reads single tensors, whichever shard holds them."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._files: dict[Path, Any] = {}
        self._source = directory / "model.safetensors.index.json"
        if self._source.is_file():
            weight_map = _read_json(self._source).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ModelLoadError(f"{self._source}: weight_map is missing")
            self._path_of = {name: directory / file for name, file in weight_map.items()}
        else:
            self._source = directory / "model.safetensors"
            self._path_of = dict.fromkeys(self._open(self._source).keys(), self._source)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._path_of:
            raise ModelLoadError(f"{self._source}: tensor {name} is missing")
        path = self._path_of[name]
        try:
            tensor: Tensor = self._open(path).get_tensor(name)
        except SafetensorError as error:
            raise ModelLoadError(f"{path}: tensor {name}: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, "
                f"config.json asks for {list(shape)}"
            )
        if not tensor.is_floating_point():
            raise ModelLoadError(f"{path}: tensor {name} has dtype {tensor.dtype}, expected floats")
        return tensor.to(device=self._device, dtype=self._dtype)

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except FileNotFoundError as error:
                raise ModelLoadError(f"{path}: not found") from error
            except (OSError, SafetensorError) as error:
                raise ModelLoadError(f"{path}: damaged or not safetensors: {error}") from error
        return self._files[path]


def _load_layer(checkpoint: _Checkpoint, config: DecoderConfig, prefix: str) -> DecoderLayer:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    query_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def reordered(tensor: Tensor) -> Tensor:
        return interleave(tensor, head_dim)

    def unchanged(tensor: Tensor) -> Tensor:
        return tensor

    def linear(
        parts: tuple[tuple[str, int, Callable[[Tensor], Tensor]], ...], size: int, *, bias: bool
    ) -> Linear:
        return Linear(
            torch.cat(
                [
                    change(checkpoint.tensor(f"{name}.weight", (rows, size)))
                    for name, rows, change in parts
                ]
            ),
            torch.cat(
                [change(checkpoint.tensor(f"{name}.bias", (rows,))) for name, rows, change in parts]
            )
            if bias
            else None,
        )

    def norm(name: str) -> RMSNorm:
        return RMSNorm(checkpoint.tensor(f"{prefix}{name}.weight", (hidden,)), config.rms_eps)

    def head_norm() -> RMSNorm | None:
        if not config.qk_norm:
            return None
        query = reordered(checkpoint.tensor(f"{attention}q_norm.weight", (head_dim,)))
        key = reordered(checkpoint.tensor(f"{attention}k_norm.weight", (head_dim,)))
        each = [query] * config.num_heads + [key] * config.num_kv_heads
        return RMSNorm(torch.stack(each), config.rms_eps)

    return DecoderLayer(
        input_norm=norm("input_layernorm"),
        qkv=linear(
            (
                (f"{attention}q_proj", query_rows, reordered),
                (f"{attention}k_proj", kv_rows, reordered),
                (f"{attention}v_proj", kv_rows, unchanged),
            ),
            hidden,
            bias=config.qkv_bias,
        ),
        head_norm=head_norm(),
        output=linear(
            ((f"{attention}o_proj", hidden, unchanged),), query_rows, bias=config.output_bias
        ),
        mlp_norm=norm("post_attention_layernorm"),
        gate_up=linear(
            ((f"{mlp}gate_proj", inner, unchanged), (f"{mlp}up_proj", inner, unchanged)),
            hidden,
            bias=config.mlp_bias,
        ),
        down=linear(((f"{mlp}down_proj", hidden, unchanged),), inner, bias=config.mlp_bias),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: not found") from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: expected a JSON object")
    return value
