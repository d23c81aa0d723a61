"""LoRA adapters as PEFT writes them: ``adapter_config.json`` and ``adapter_model.safetensors``.

The format comes from huggingface/peft 0.21 (``tuners/lora/config.py``, ``utils/save_and_load.py``):
a module ``m`` has ``base_model.model.m.lora_A.weight`` [rank, in] and ``….lora_B.weight``
[out, rank], and computes ``base(x) + scale * B(A(x))``. Every key of the configuration is used,
known to change nothing, or refused by name.
"""

import hashlib
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.models.checkpoint import Checkpoint
from backend.models.config import ConfigKeys, ModelLoadError, read_json
from backend.models.wrappers import ADAPTED, is_wrapper

logger = logging.getLogger(__name__)

MAX_RANK = 256
CONFIG_FILE = "adapter_config.json"
_WEIGHTS = "adapter_model"

_USED = frozenset(
    {
        *("peft_type", "task_type", "bias", "fan_in_fan_out", "init_lora_weights"),
        *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        "base_model_name_or_path",
    }
)
# Of training, or of how the library loads: what is computed does not depend on them.
_NEEDLESS = frozenset(
    {
        *("auto_mapping", "revision", "inference_mode", "peft_version", "lora_dropout"),
        *("megatron_core", "qalora_group_size", "runtime_config", "ensure_weight_tying"),
        *("eva_config", "loftq_config", "corda_config", "lora_ga_config"),
    }
)
# These keep the base's weights as they are; PiSSA, OLoRA, LoftQ and others change them.
_PLAIN_INITIALISATIONS = (None, True, False, "gaussian", "orthogonal", "eva")
_OTHER_KINDS = {
    "use_dora": "DoRA is not supported",
    "modules_to_save": "whole modules beside the low ranks are not supported",
    "lora_bias": "biases of low ranks are not supported",
    "trainable_token_indices": "trained tokens are not supported",
    "target_parameters": "parameters that are no linear modules, such as experts', are not "
    "supported",
    "layer_replication": "layers that are repeated are not supported",
    "alora_invocation_tokens": "adapters that begin at certain tokens (aLoRA) are not supported",
}


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one module: ``b @ a``, on the CPU in float32, the scale within b.

    ``a`` is [rank, in], ``b`` [out, rank].
    """

    a: Tensor
    b: Tensor


Adapter = Mapping[str, LowRank]
"""Modules by name, such as ``model.layers.0.self_attn.q_proj``."""


def load_adapter(
    directory: Path, modules: Mapping[str, tuple[int, int]], base: Path
) -> dict[str, LowRank]:
    """Read an adapter for a model whose linear ``modules`` have the shapes [out, in].

    ``base`` is the model's directory. What adapts the vision part of a wrapper is not read. Raises
    ModelLoadError, which names file, key and value.
    """
    keys = ConfigKeys(read_json(directory / CONFIG_FILE), str(directory / CONFIG_FILE))
    _check_keys(keys)
    is_wrapped = is_wrapper(read_json(base / "config.json"))
    targets = _Targets(keys, is_wrapped=is_wrapped)
    expected = [name for name in modules if targets.include(name)]
    targets.refuse_others(expected)
    weights = Checkpoint(
        directory,
        _WEIGHTS,
        described_by=f"{CONFIG_FILE} and the model",
        is_wrapped=is_wrapped,
    )
    _refuse_tensors(weights, expected, modules)
    adapter = {name: _low_rank(name, modules[name], keys, weights) for name in expected}
    weights.close()
    _compare_bases(keys, base)
    return adapter


def adapter_digest(name: str, directory: Path) -> bytes:
    """Return 32 bytes for an adapter's name and files. Raises OSError."""
    digest = hashlib.sha256(hashlib.sha256(name.encode()).digest())
    for file in (CONFIG_FILE, f"{_WEIGHTS}.safetensors"):
        with (directory / file).open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.digest()


def _check_keys(keys: ConfigKeys) -> None:
    kind = keys.get("peft_type", str)
    if kind != "LORA":
        raise keys.refusal("peft_type", f"expected LORA, got {kind!r}")
    task = keys.get("task_type", str, "CAUSAL_LM")
    if task != "CAUSAL_LM":
        raise keys.refusal("task_type", f"expected CAUSAL_LM, got {task!r}")
    bias = keys.get("bias", str, "none")
    if bias != "none":
        raise keys.refusal("bias", f"expected none, got {bias!r}; trained biases are not supported")
    if keys.get("fan_in_fan_out", bool, default=False):
        raise keys.refusal("fan_in_fan_out", "True is not supported; train with False")
    start = keys.values.get("init_lora_weights")
    if start not in _PLAIN_INITIALISATIONS:
        raise keys.refusal(
            "init_lora_weights",
            f"{start!r} changes the base's weights; save the adapter as plain LoRA, with "
            "path_initial_model_for_weight_conversion",
        )
    for key, value in keys.values.items():
        if key in _USED or key in _NEEDLESS or value in (None, False, [], {}):
            continue
        problem = _OTHER_KINDS.get(key, "this key is not known here, and may change the result")
        raise keys.refusal(key, f"{problem}; got {value!r}")


class _Targets:
    """Which modules an adapter changes, by PEFT's rules (``check_target_module_exists``)."""

    def __init__(self, keys: ConfigKeys, *, is_wrapped: bool) -> None:
        self._keys = keys
        self._is_wrapped = is_wrapped
        self._targets = self._names("target_modules")
        if self._targets is None:
            raise keys.refusal("target_modules", "is missing")
        self._excluded = self._names("exclude_modules")
        self._layers = self._read_layers()
        patterns = self._names("layers_pattern") or ()
        each = (patterns,) if isinstance(patterns, str) else patterns
        self._layer_patterns = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in each]

    def include(self, module: str) -> bool:
        if self._excluded is not None and self._matches("exclude_modules", self._excluded, module):
            return False
        if not self._matches("target_modules", self._targets or (), module):
            return False
        # As in PEFT, a pattern says of layers what it wants to say.
        if self._layers is None or isinstance(self._targets, str):
            return True
        patterns = self._layer_patterns or [r".*?\.[^.]*\.(\d+)\."]
        found = next((match for each in patterns if (match := re.match(each, module))), None)
        return found is not None and int(found[1]) in self._layers

    def refuse_others(self, modules: Iterable[str]) -> None:
        """Raise ModelLoadError unless every target has one of ``modules`` that are supported."""
        names = list(modules)
        targets = self._targets or ()
        for target in (targets,) if isinstance(targets, str) else targets:
            one = target if isinstance(targets, str) else (target,)
            if not any(self._matches("target_modules", one, name) for name in names):
                raise self._keys.refusal(
                    "target_modules",
                    f"{target!r} is no linear map of this model's attention or dense MLP; others, "
                    "such as embeddings, lm_head, routers and experts, are not supported",
                )

    def _matches(self, key: str, wanted: str | tuple[str, ...], module: str) -> bool:
        if wanted == "all-linear":
            return True
        if not isinstance(wanted, str):
            return any(module == each or module.endswith(f".{each}") for each in wanted)
        # A pattern may name the part of a wrapper that the text model is.
        inner = f"model.language_model.{module.removeprefix('model.')}"
        names = (module, inner, f"language_model.{module}") if self._is_wrapped else (module,)
        try:
            return any(re.fullmatch(wanted, name) for name in names)
        except re.error as error:
            problem = f"{wanted!r} is no regular expression: {error}"
            raise self._keys.refusal(key, problem) from error

    def _names(self, key: str) -> str | tuple[str, ...] | None:
        value = self._keys.values.get(key)
        return value if isinstance(value, str) and value else self._keys.names(key) or None

    def _read_layers(self) -> frozenset[int] | None:
        value = self._keys.values.get("layers_to_transform")
        if value is None or value == []:
            return None
        layers = value if isinstance(value, list) else [value]
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in layers):
            raise self._keys.refusal("layers_to_transform", f"expected numbers, got {value!r}")
        return frozenset(layers)


def _refuse_tensors(
    weights: Checkpoint, expected: Iterable[str], modules: Mapping[str, tuple[int, int]]
) -> None:
    known = {f"{ADAPTED}{name}.lora_{half}.weight" for name in expected for half in "AB"}
    for name in sorted(weights.names):
        if name in known:
            continue
        module, _, half = name.removeprefix(ADAPTED).partition(".lora_")
        problem = "is not supported: only lora_A and lora_B of linear maps are"
        if half in {"A.weight", "B.weight"}:
            problem = f"belongs to {module}, "
            problem += (
                f"which {CONFIG_FILE}: target_modules does not name"
                if module in modules
                else "which is no linear map of this model's attention or dense MLP"
            )
        raise ModelLoadError(f"{weights.source}: tensor {name} {problem}")


_MAX_ALPHA = 1e30
"""Far beyond any that is of use; an integer may be too large for a float."""


def _low_rank(
    module: str, shape: tuple[int, int], keys: ConfigKeys, weights: Checkpoint
) -> LowRank:
    rank, scale = _rank_and_scale(module, keys)
    a, b = torch.empty(rank, shape[1]), torch.empty(shape[0], rank)
    for half, matrix in (("A", a), ("B", b)):
        name = f"{ADAPTED}{module}.lora_{half}.weight"
        weights.expect(name, tuple(matrix.shape))
        weights.read_into(name, matrix)
    return LowRank(a, b.mul_(scale))


def _rank_and_scale(module: str, keys: ConfigKeys) -> tuple[int, float]:
    rank, key = _patterned(module, keys, "rank_pattern", keys.values.get("r", 8), "r")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        raise keys.refusal(key, f"expected a rank of 1 to {MAX_RANK}, got {rank!r}")
    default = keys.values.get("lora_alpha", 8)
    alpha, key = _patterned(module, keys, "alpha_pattern", default, "lora_alpha")
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not is_number or not abs(alpha) < _MAX_ALPHA:
        raise keys.refusal(key, f"expected a number, got {alpha!r}")
    root = keys.get("use_rslora", bool, default=False)
    return rank, alpha / (math.sqrt(rank) if root else rank)


def _patterned(
    module: str, keys: ConfigKeys, key: str, default: Any, default_key: str
) -> tuple[Any, str]:
    """Return the value of the first pattern that matches the end of ``module``, and its key."""
    patterns = keys.values.get(key) or {}
    if not isinstance(patterns, dict):
        raise keys.refusal(key, f"expected an object, got {patterns!r}")
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value, f"{key}: {pattern}"
        except re.error as error:
            problem = f"{pattern!r} is no regular expression: {error}"
            raise keys.refusal(key, problem) from error
    return default, default_key


def _compare_bases(keys: ConfigKeys, base: Path) -> None:
    """Warn where the adapter names another base; directories may have been renamed."""
    trained_on = keys.get("base_model_name_or_path", str, "")
    # A directory of the hub's cache says models--owner--name.
    names = {part.rsplit("--", 1)[-1].lower() for part in base.resolve().parts}
    if trained_on and Path(trained_on).name.lower() not in names:
        logger.warning(
            "%s: base_model_name_or_path: trained on %r, served on %s: the shapes fit, but the "
            "weights may be others",
            keys.source,
            trained_on,
            base,
        )
