"""The text part of models that also read images: which model it is, and what its tensors are named.

A wrapper has the text model's keys in ``text_config`` (older Qwen-VL: beside its own), and the
text model's tensors under a prefix. Only text is computed here. For text alone the three positions
of M-RoPE are equal, so it is ordinary rotary embedding.
"""

from collections.abc import Mapping
from typing import Any

WRAPPERS = frozenset(
    f"{name}ForConditionalGeneration"
    for name in (
        "AyaVision",
        "Cohere2Vision",
        "Gemma3",
        "Gemma4",
        "InternVL",
        "Llava",
        "LlavaNext",
        "LlavaOnevision",
        "Mistral3",
        "Qwen2VL",
        "Qwen2_5_VL",
        "Qwen3VL",
        "Qwen3VLMoe",
    )
)
"""Architectures whose text part computes a text as the text model alone does."""

# LLaVA and Pixtral are published with the keys that differ from these alone.
_LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_MISTRAL = _LLAMA | {
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}
_QWEN2_VL = {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80}
_QWEN3_VL = {"rope_theta": 5e5}
_QWEN3_VL_MOE = _QWEN3_VL | {"norm_topk_prob": True, "num_experts_per_tok": 4}
# By ``model_type`` of the text part: which family of ours it is, and what absent keys mean.
_FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _LLAMA),
    "mistral": ("MistralForCausalLM", _MISTRAL),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2_vl": ("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen2_vl_text": ("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen2_5_vl": ("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen2_5_vl_text": ("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {}),
    "qwen3_vl_text": ("Qwen3ForCausalLM", _QWEN3_VL),
    "qwen3_vl_moe_text": ("Qwen3MoeForCausalLM", _QWEN3_VL_MOE),
}
_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    *((name, name) for name in ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")),
)

ADAPTED = "base_model.model."
"""What PEFT puts before the names of the modules that it adapts."""


def is_wrapper(values: Mapping[str, Any]) -> bool:
    """Return whether a parsed ``config.json`` describes one of ``WRAPPERS``."""
    names = values.get("architectures")
    return isinstance(names, list) and any(
        isinstance(name, str) and name in WRAPPERS for name in names
    )


def text_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the text model's own ``config.json`` would hold.

    ``values`` come back as they are where there is no wrapper, or no family of ours in it.
    """
    text = values.get("text_config", values)
    if not is_wrapper(values) or not isinstance(text, Mapping):
        return values
    family, defaults = _FAMILIES.get(str(text.get("model_type")), (None, {}))
    if family is None:
        return values
    # Some keys say something by null, such as a window that there is not.
    found = {key: value for key, value in text.items() if value is not None or key not in defaults}
    dtype = values.get("dtype") or values.get("torch_dtype")
    told = {"architectures": [family], "tie_word_embeddings": may_be_tied(values)}
    return {**defaults, **found, **told, **({"dtype": dtype} if dtype else {})}


def may_be_tied(values: Mapping[str, Any]) -> bool:
    """Return whether a wrapper without a tensor of the head has that of the embedding.

    Wrappers disagree on where the key stands, so one that says yes, or none, will do.
    """
    text = values.get("text_config")
    found = [
        each.get("tie_word_embeddings") for each in (values, text) if isinstance(each, Mapping)
    ]
    return True in found or False not in found


def text_tensor(name: str) -> str | None:
    """Return the name of a wrapper's tensor in the text model, None: it is not of the text part.

    The name may be that of an adapter's tensor.
    """
    if name.startswith(ADAPTED):
        own = text_tensor(name.removeprefix(ADAPTED))
        return own and ADAPTED + own
    for prefix, plain in _PREFIXES:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return None
