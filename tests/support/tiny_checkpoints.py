"""A pytest plugin: tiny random checkpoints of every family, whose text spells token ids."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

VOCAB_SIZE = 320

# Large initial weights: with the default the next token would hardly depend on attention.
_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.05, 1.2, 1.5],
    "long_factor": [1.1, 1.9, 3.1, 4.0],
}
_MIXTURE = {"num_experts_per_tok": 2, "hidden_size": 32, "head_dim": 16}

# Keys beside _SHAPE. Windows are shorter than some of the prompts of the tests.
DECODER_CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "mistral": ("Mistral", {"sliding_window": 20, "head_dim": 24}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2_windows": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "phi3": (
        "Phi3",
        {
            "sliding_window": 20,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "phi3_longrope": (
        "Phi3",
        {
            "rope_parameters": {**_LONGROPE, "partial_rotary_factor": 0.5},
            "original_max_position_embeddings": 64,
        },
    ),
    "mixtral": ("Mixtral", {**_MIXTURE, "num_local_experts": 4, "sliding_window": 20}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **_MIXTURE,
            "num_experts": 8,
            "moe_intermediate_size": 40,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
}
"""Those that the engine's own decoder computes; the equality tests take all of them."""

_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}


_DELTA_NET = {
    "num_hidden_layers": 4,
    # With larger weights transformers with a cache differs from itself without one by 5e-4.
    "initializer_range": 0.1,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
_SHARED_EXPERT = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}
# With recurrent states in most layers.
_HYBRID_CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3Next", {**_DELTA_NET, **_SHARED_EXPERT, "mlp_only_layers": [1]}),
    "qwen3_5": ("Qwen3_5Text", {**_DELTA_NET, "num_hidden_layers": 5}),
    "qwen3_5_moe": ("Qwen3_5MoeText", {**_DELTA_NET, **_SHARED_EXPERT}),
}
# Without code of our own for them.
_OTHER_CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 24,
            "sliding_window": 20,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 8.0,
            "attn_implementation": "eager",
        },
    ),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": 20, "num_hidden_layers": 6}),
    "olmo2": ("Olmo2", {}),
    "gpt_neox": ("GPTNeoX", {}),
    "starcoder2": ("Starcoder2", {"sliding_window": 20}),
    "gpt2": ("GPT2", {}),
    "gpt_oss": (
        "GptOss",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 20,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **_EXPERTS,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
        },
    ),
    "glm4_moe": ("Glm4Moe", {**_EXPERTS, "head_dim": 16}),
    "minimax_m2": ("MiniMaxM2", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "mamba": ("Mamba", {}),
    "falcon": ("Falcon", {}),
    "bloom": ("Bloom", {}),
}


_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_heads": 2}
_TILES = {**_VISION, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
_QWEN_VISION = {**_VISION, "depth": 1, "out_hidden_size": 64, "num_position_embeddings": 16}
_MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_INTERLEAVED = {"head_dim": 16, "rope_parameters": _MROPE | {"mrope_interleaved": True}}

_GEMMA4 = {
    "head_dim": 16,
    "sliding_window": 20,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "vocab_size_per_layer_input": VOCAB_SIZE,
}

# Keys of the text part beside _SHAPE, and those of the vision part.
WRAPPED_CHECKPOINTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {"rope_parameters": _MROPE},
        {**_QWEN_VISION, "fullatt_block_indexes": [0]},
    ),
    "qwen3_vl": ("Qwen3VL", _INTERLEAVED, {**_QWEN_VISION, "deepstack_visual_indexes": [0]}),
    "qwen3_vl_moe": (
        "Qwen3VLMoe",
        {
            **_INTERLEAVED,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
        },
        {**_QWEN_VISION, "deepstack_visual_indexes": [0]},
    ),
    "mistral3": (
        "Mistral3",
        {"model_type": "mistral", "sliding_window": None, "head_dim": 24},
        {**_TILES, "model_type": "pixtral"},
    ),
    "mistral3_of_ministral3": (
        "Mistral3",
        {"model_type": "ministral3", "head_dim": 24},
        {**_TILES, "model_type": "pixtral"},
    ),
    "gemma3_vl": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 20, "num_hidden_layers": 6},
        {**_TILES, "model_type": "siglip_vision_model"},
    ),
    "gemma4": (
        "Gemma4",
        {
            **_GEMMA4,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
        },
        {**_TILES, "model_type": "gemma4_vision", "head_dim": 16, "num_key_value_heads": 2},
    ),
    "gemma4_shared": (
        "Gemma4",
        {
            **_GEMMA4,
            "global_head_dim": 32,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
        },
        {**_TILES, "model_type": "gemma4_vision", "head_dim": 16, "num_key_value_heads": 2},
    ),
    "llava": ("Llava", {"model_type": "llama"}, {**_TILES, "model_type": "clip_vision_model"}),
    "internvl": (
        "InternVL",
        {"model_type": "qwen3", "head_dim": 16},
        {**_TILES, "image_size": [28, 28], "patch_size": [14, 14]},
    ),
}
"""Models that read images too, whose text part is computed."""


def _model(family: str) -> transformers.PreTrainedModel:
    if family in WRAPPED_CHECKPOINTS:
        name, text, vision = WRAPPED_CHECKPOINTS[family]
        kind = getattr(transformers, f"{name}ForConditionalGeneration")
        return kind(kind.config_class(text_config={**_SHAPE, **text}, vision_config=vision))
    name, keys = (DECODER_CHECKPOINTS | _HYBRID_CHECKPOINTS | _OTHER_CHECKPOINTS)[family]
    config = getattr(transformers, f"{name}Config")(**{**_SHAPE, **keys})
    return transformers.AutoModelForCausalLM.from_config(config)


def _spelling_tokenizer() -> tokenizers.Tokenizer:
    """Token 17 reads " 17", so that text says exactly which tokens were generated."""
    model = tokenizers.models.BPE(vocab={f"Ġ{i}": i for i in range(VOCAB_SIZE)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, Any]]:
    """Return directory and transformers model of a family, made once."""
    made: dict[str, tuple[Path, Any]] = {}

    def make(family: str) -> tuple[Path, Any]:
        if family not in made:
            torch.manual_seed(len(family))
            model = _model(family).eval()
            # Biases and norm weights start as constants, which would hide their misuse.
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name.endswith("bias") or "norm" in name:
                        parameter.add_(torch.randn_like(parameter) * 0.2)
            directory = tmp_path_factory.mktemp(family)
            model.save_pretrained(directory)
            _spelling_tokenizer().save(str(directory / "tokenizer.json"))
            made[family] = directory, model
        return made[family]

    return make


@pytest.fixture
def edited_checkpoint(
    checkpoint: Callable[[str], tuple[Path, Any]], tmp_path: Path
) -> Callable[..., Path]:
    """Return a copy of the Llama checkpoint with changed or (None) removed config keys."""

    def edit(**changes: Any) -> Path:
        source, _ = checkpoint("llama")
        for file in source.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        config = json.loads((tmp_path / "config.json").read_text())
        config |= changes
        config = {key: value for key, value in config.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return edit
