"""config.json read as transformers reads it: windows by layer, rotary tables, experts, defaults."""

import itertools

import pytest
import torch
import transformers

from backend.models.config import ModelLoadError
from backend.models.families import parse_config
from backend.models.rope import rotation_table

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def parsed(name, **keys):
    values = {"architectures": [f"{name}ForCausalLM"], **SHAPE, **keys}
    return parse_config({key: value for key, value in values.items() if value != "absent"}, "c")


def theirs(name, **keys):
    """The same keys through transformers: its config and, on no memory, its model."""
    values = {**SHAPE, **keys}
    config = getattr(transformers, f"{name}Config")(
        **{key: value for key, value in values.items() if value != "absent"}
    )
    with torch.device("meta"):
        return config, getattr(transformers, f"{name}ForCausalLM")(config)


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3"])
@pytest.mark.parametrize(
    ("use", "window", "first", "types"),
    [
        *itertools.product([True, False, "absent"], [32, None, "absent"], [0, 2, "absent"], [None]),
        (True, 32, 0, ["full_attention", "sliding_attention"] * 2),
        (False, 32, 0, ["full_attention"] * 4),
    ],
)
def test_windows_by_layer(name, use, window, first, types):
    keys = {
        "use_sliding_window": use,
        "sliding_window": window,
        "max_window_layers": first,
        "layer_types": types or "absent",
    }
    _, model = theirs(name, **keys)
    expected = tuple(layer.self_attn.sliding_window for layer in model.model.layers)
    assert parsed(name, **keys).windows == expected


@pytest.mark.parametrize("name", ["Mistral", "Phi3", "Mixtral", "Qwen3Moe"])
@pytest.mark.parametrize("use", [True, False, "absent"])
@pytest.mark.parametrize("window", [32, None, "absent"])
def test_windows_for_all_layers(name, use, window):
    keys = {"use_sliding_window": use, "sliding_window": window}
    if name == "Phi3":
        keys["pad_token_id"] = 0
    config, _ = theirs(name, **keys)
    assert parsed(name, **keys).windows == (config.sliding_window,) * 4


def test_families_without_windows_do_not_read_the_keys():
    assert parsed("Llama", sliding_window=7, use_sliding_window=True).windows == (None,) * 4


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("Qwen2", {"layer_types": ["full_attention"]}, "layer_types: 1 types for 4 layers"),
        ("Qwen3", {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention' is not"),
        ("Qwen3", {"layer_types": ["sliding_attention"] * 4}, "without sliding_window"),
        ("Qwen2", {"layer_types": "full_attention"}, "layer_types: expected a list of names"),
        ("Mistral", {"layer_types": ["full_attention"] * 4}, "one window for every layer"),
        ("Mistral", {"sliding_window": 0}, "sliding_window: expected a positive number, got 0"),
        ("Phi3", {"sliding_window": "wide"}, "sliding_window: expected int, got 'wide'"),
        ("Mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 of only 8 experts"),
        ("Qwen3Moe", {"mlp_only_layers": "1"}, "mlp_only_layers: expected a list of layer"),
        ("Phi3", {"partial_rotary_factor": 0.45}, "partial_rotary_factor: 0.45"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_key(name, keys, message):
    with pytest.raises(ModelLoadError) as caught:
        parsed(name, **keys)
    assert message in str(caught.value)


LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.02, 1.3, 1.5, 1.6, 2.0],
    "long_factor": [1.1, 1.5, 3.0, 8.0, 20.0, 33.0],
}


@pytest.mark.parametrize(
    ("name", "keys", "length"),
    [
        ("Llama", {}, 512),
        ("Mixtral", {}, 512),
        ("Llama", {"rope_theta": 5e5}, 512),
        ("Qwen2", {"rope_scaling": {"type": "linear", "factor": 3.0}}, 512),
        (
            "Llama",
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            512,
        ),
        (
            "Qwen2",
            {
                "rope_theta": 1e6,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                },
            },
            512,
        ),
        (
            "Qwen3",
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 8.0,
                    "original_max_position_embeddings": 64,
                    "beta_fast": 16,
                    "beta_slow": 2,
                    "mscale": 1.0,
                    "mscale_all_dim": 0.5,
                    "truncate": False,
                }
            },
            512,
        ),
        ("Phi3", {"partial_rotary_factor": 0.75}, 512),
        *(
            (
                "Phi3",
                {
                    "partial_rotary_factor": 0.75,
                    "original_max_position_embeddings": 128,
                    "rope_scaling": LONGROPE,
                },
                length,
            )
            for length in (128, 129)
        ),
    ],
)
def test_rotations_are_those_of_transformers(name, keys, length):
    if name == "Phi3":
        keys = {**keys, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(**SHAPE, **keys)
    model = getattr(transformers, f"{name}Model")(config)
    cos, sin = model.rotary_emb(torch.zeros(1), torch.arange(length).unsqueeze(0))
    half = cos.shape[-1] // 2
    ours = parsed(name, **keys)
    table = rotation_table(ours.rotary, ours.head_dim, length, CPU)
    assert ours.rotary.dim == cos.shape[-1]
    torch.testing.assert_close(table[:, :half].real, cos[0, :, :half], atol=2e-5, rtol=0)
    torch.testing.assert_close(table[:, :half].imag, sin[0, :, :half], atol=2e-5, rtol=0)
    assert bool((table[:, half:] == 1).all())


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_the_first_names_of_longrope_mean_the_same(name):
    keys = {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 128}
    older = parsed("Phi3", rope_scaling={**LONGROPE, "type": name}, **keys)
    assert older == parsed("Phi3", rope_scaling=LONGROPE, **keys)


def test_experts_stand_where_transformers_puts_them():
    keys = {"num_experts": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    _, model = theirs("Qwen3Moe", **keys)
    expected = {at for at, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "experts")}
    assert parsed("Qwen3Moe", **keys).experts.layers == expected == {1}


@pytest.mark.parametrize(
    ("name", "has_head_dim"),
    [("Llama", False), ("Mistral", False), ("Qwen2", False), ("Qwen3", True), ("Mixtral", False)],
)
def test_absent_keys_mean_what_transformers_takes_them_for(name, has_head_dim):
    config, _ = theirs(name)
    ours = parsed(name)
    assert ours.rms_eps == config.rms_norm_eps
    assert ours.rotary.theta == config.rope_parameters["rope_theta"]
    assert ours.tied_embeddings == config.tie_word_embeddings
    assert ours.head_dim == (config.head_dim if has_head_dim else 16)


# As the hub has them, written by older versions of transformers.
PUBLISHED = {
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    },
    "Mistral-7B-v0.1": {
        "architectures": ["MistralForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 32000,
    },
    "Qwen2.5-0.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 24,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Llama-3.1-8B", {"head_dim": 128, "windows": (None,) * 32, "qkv_bias": False}),
        ("Mistral-7B-v0.1", {"head_dim": 128, "windows": (4096,) * 32, "max_positions": 32768}),
        ("Qwen2.5-0.5B", {"head_dim": 64, "windows": (None,) * 24, "qkv_bias": True}),
        ("Qwen3-30B-A3B", {"head_dim": 128, "windows": (None,) * 48, "qk_norm": True}),
    ],
)
def test_published_configs(name, expected):
    config = parse_config(PUBLISHED[name], name)
    assert {key: getattr(config, key) for key in expected} == expected
    assert config.checkpoint_dtype == "bfloat16"
    assert (config.experts is None) == (name != "Qwen3-30B-A3B")
    if config.experts is not None:
        assert (config.experts.num_experts, config.experts.top_k) == (128, 8)
        assert config.experts.normalised
        assert config.experts.layers == frozenset(range(48))
