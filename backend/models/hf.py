"""Any causal LM of transformers, run by its own code with our paged attention in place of its own.

All tokens of a step are one row, with the positions that they have in their sequences. Attention
alone knows whose they are, so a model that mixes tokens elsewhere, or whose attention is more than
a causal, possibly windowed softmax of scores, cannot be served this way. What is known to
be so is refused by name; ``hf_check`` finds the rest before the first request.

Slower than ``decoder``: a few dozen small operations a layer, and nothing fused. transformers is
imported here and nowhere else.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from backend.models.attention import Attention, AttentionLayer, ScoreRules
from backend.models.config import ModelLoadError, first_line
from backend.models.wrappers import WRAPPERS, is_wrapper, may_be_tied

_INTERFACE = "refrain_paged"
_STEP = "refrain_step"
# Frequencies that depend on the longest text of a step: neighbours would change one another.
_SHARED_ROTARY = frozenset({"dynamic", "longrope"})
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class SeenAttention:
    """One attention of a model: ``shape`` is (heads, kv_heads, head_dim)."""

    layer: int
    shape: tuple[int, int, int]
    window: int | None
    rules: ScoreRules | None


@dataclass(slots=True)
class _Step:
    """What the attention modules of one model find: who attends, and which layer they are."""

    attention: Attention | None = None
    layers: dict[int, int] = field(default_factory=dict)
    seen: list[SeenAttention] | None = None
    """Where attentions are noted instead of computed."""
    kv_shape: tuple[int, int] = (1, 1)
    """KV heads and head_dim of the cache; a layer with less of them is widened."""


class GenericModel:
    """Implements ``Model``. Its hidden states are logits already: scaling and capping are its own.

    ``own_logits`` is the model as transformers computes it, for one sequence.
    """

    def __init__(self, model: Any, source: str) -> None:
        """``model`` is a transformers model in evaluation mode, with eager attention."""
        self.source = source
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._model = model
        self._step = _Step()
        self.rules: tuple[ScoreRules | None, ...] = ()
        """What becomes of each layer's scores; known after ``attentions``."""
        parameters = inspect.signature(model.forward).parameters
        if "position_ids" not in parameters:
            raise ModelLoadError(f"{source}: {type(model).__name__} takes no position_ids")
        self._picks_rows = "logits_to_keep" in parameters
        for module in model.modules():
            setattr(module, _STEP, self._step)

    @property
    def config(self) -> Any:
        """The text model's configuration, as transformers read it."""
        return self._model.config.get_text_config(decoder=True)

    def modules(self) -> list[nn.Module]:
        """Return all modules of the network."""
        return list(self._model.modules())

    def own_logits(self, tokens: Tensor) -> Tensor:
        """Return [tokens, vocab] without our attention; only before ``take_over``."""
        logits: Tensor = self._model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0]
        return logits

    def take_over(self) -> None:
        """Put our attention in the place of the model's."""
        transformers.AttentionInterface.register(_INTERFACE, _attend)
        self._model.set_attn_implementation(_INTERFACE)

    def attentions(self) -> list[SeenAttention]:
        """Run the model on two tokens and return its attentions, in order; after ``take_over``."""
        seen = self._step.seen = []
        two = torch.arange(2, device=self.device)
        try:
            self._model(input_ids=two[None], position_ids=two[None], use_cache=False)
        finally:
            self._step.seen = None
        self.rules = tuple(each.rules for each in seen)
        return seen

    def widen(self, num_kv_heads: int, head_dim: int) -> None:
        """Let every layer have so many KV heads, by copies, of so many dimensions, by zeros."""
        self._step.kv_shape = num_kv_heads, head_dim

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor | None
    ) -> Tensor:
        # After ``take_over``.
        self._step.attention = attention
        picked = logit_rows is not None and self._picks_rows
        logits: Tensor = self._model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            **({"logits_to_keep": logit_rows} if picked else {}),
        ).logits[0]
        return logits if picked or logit_rows is None else logits.index_select(0, logit_rows)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' interface has it: [1, heads, tokens, head_dim]."""
    step: _Step = getattr(module, _STEP)
    beyond = ["position_bias"] if options.get("position_bias") is not None else []
    if attention_mask is not None:
        beyond.append("attention_mask")
    if options.get("is_causal", getattr(module, "is_causal", True)) is False:
        beyond.append("is_causal=False")
    if beyond:
        raise ModelLoadError(f"its attention needs {', '.join(beyond)}, which is not supported")
    _, num_heads, num_tokens, head_dim = query.shape
    rules = ScoreRules(softcap, s_aux) if softcap is not None or s_aux is not None else None
    index = step.layers.setdefault(id(module), len(step.layers))
    value_dim = value.shape[-1]
    if step.seen is not None:
        shape = (num_heads, key.shape[1], max(head_dim, value_dim))
        step.seen.append(SeenAttention(index, shape, sliding_window, rules))
        return query.new_zeros(1, num_tokens, num_heads, value_dim), None
    if step.attention is None:
        raise RuntimeError("no step is under way")
    kv_heads, width = step.kv_shape
    scale = math.sqrt(width) * (head_dim**-0.5 if scaling is None else scaling)
    if not math.isclose(scale, 1.0):
        query = query * scale
    if kv_heads != key.shape[1]:
        copies = kv_heads // key.shape[1]
        key, value = (each.repeat_interleave(copies, dim=1) for each in (key, value))
    parts = [
        each[0] if each.shape[-1] == width else functional.pad(each[0], (0, width - each.shape[-1]))
        for each in (query, key, value)
    ]
    qkv = torch.cat(parts).transpose(0, 1).contiguous()
    layer = AttentionLayer(index, sliding_window, rules=rules)
    attended = step.attention.forward(layer, qkv, None)
    return attended.view(1, num_tokens, num_heads, width)[..., :value_dim], None


def load_generic(
    directory: Path,
    values: Mapping[str, Any],
    *,
    device: torch.device,
    dtype: torch.dtype,
    tensors: Mapping[str, Any] | None = None,
) -> GenericModel:
    """Read config and weights with transformers. Raises ModelLoadError.

    ``values`` is the parsed ``config.json``. Code that comes with a model is never run. ``tensors``
    are by name what is read by ``[...]`` instead of the directory's files, if given.
    """
    source = str(directory / "config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise ModelLoadError(f"{source}: {first_line(error)}") from error
    if is_wrapper(values):
        config = config.get_text_config(decoder=True)
        config.tie_word_embeddings = "lm_head.weight" not in (tensors or ()) and may_be_tied(values)
    kind = _causal_class(config, values, source)
    _refuse_config(config, source)
    if tensors is not None and hasattr(config, "quantization_config"):
        del config.quantization_config
    try:
        model, loaded = kind.from_pretrained(
            directory if tensors is None else None,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, by name
        )
    except (torch.OutOfMemoryError, MemoryError, ModelLoadError):
        raise
    except Exception as error:
        raise ModelLoadError(f"{directory}: {first_line(error)}") from error
    problems = [f"{name} is missing" for name in loaded["missing_keys"]] + [
        f"{name} has shape {list(found)}, config.json asks for {list(wanted)}"
        for name, found, wanted in loaded["mismatched_keys"]
    ]
    if problems:
        raise ModelLoadError(f"{directory}: tensor {min(problems)} ({len(problems)} such tensors)")
    model = model.to(device).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.sum(dtype=torch.float32))):
            raise ModelLoadError(f"{directory}: tensor {name}: has values that are not finite")
    return GenericModel(model, source)


def _causal_class(config: Any, values: Mapping[str, Any], source: str) -> Any:
    """Return the class that computes ``config``: of the model, or of a wrapper's text part."""
    architectures = values.get("architectures") or []
    if config.is_encoder_decoder:
        raise ModelLoadError(f"{source}: {config.model_type}: encoder-decoders are not supported")
    # The only list of causal language models that transformers has.
    known = transformers.AutoModelForCausalLM._model_mapping  # noqa: SLF001
    kind = known.get(type(config), None)
    name = getattr(kind, "__name__", None)
    is_told = isinstance(architectures, list) and name in architectures
    if kind is None or not (is_told or is_wrapper(values)):
        text_parts = f"; the text part of {', '.join(sorted(WRAPPERS))} is supported"
        raise ModelLoadError(
            f"{source}: architectures: {architectures} is not supported: transformers knows "
            + (f"{name} for" if name else "no causal language model for")
            + f" model_type {config.model_type}"
            + (text_parts if "vision_config" in values else "")
        )
    return kind


def _refuse_config(config: Any, source: str) -> None:
    text = config.get_text_config(decoder=True)
    for kind in getattr(text, "layer_types", None) or ():
        if kind not in _LAYER_TYPES:
            supported = " and ".join(_LAYER_TYPES)
            raise ModelLoadError(
                f"{source}: layer_types: {kind!r} is not supported; {supported} are"
            )
    if shared := _SHARED_ROTARY & set(_rotary_types(getattr(text, "rope_parameters", None))):
        raise ModelLoadError(
            f"{source}: rope_parameters: rope_type: {min(shared)!r} is not supported for "
            f"{config.model_type}"
        )
    if getattr(text, "alibi", False) is True:
        raise ModelLoadError(f"{source}: alibi: attention biases are not supported")
    if not isinstance(getattr(text, "max_position_embeddings", None), int):
        raise ModelLoadError(f"{source}: max_position_embeddings is missing")


def _rotary_types(parameters: object) -> list[str]:
    """Names of rotary scalings, for all layers or by type of layer."""
    if not isinstance(parameters, Mapping):
        return []
    nested = [name for value in parameters.values() for name in _rotary_types(value)]
    return [str(parameters.get("rope_type", "default")), *nested]
