"""Fields of other servers: which of them change nothing here, and which must be refused by name.

A client that was written for another server must not get an answer without what it asked for.
So the second kind is refused even where unknown fields are allowed.
"""

from collections.abc import Mapping
from typing import Any

HARMLESS = frozenset(
    {
        # OpenAI's, about accounts, storage and speed
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        # vLLM's, SGLang's and llama.cpp's, about scheduling, caching and logs
        *("priority", "request_id", "rid", "custom_labels", "guided_decoding_backend"),
        *("disable_fallback", "cache_prompt", "id_slot"),
        # llama.cpp's that mean nothing without another field, which is refused
        *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("dynatemp_exponent", "mirostat_eta", "mirostat_tau", "repeat_last_n", "xtc_threshold"),
    }
)
"""No value of these changes an answer."""

_OFF = (False,)
_EMPTY: tuple[Any, ...] = ("", [], {})

REFUSED: Mapping[str, tuple[Any, ...]] = {
    # vLLM
    "add_special_tokens": (),
    "allowed_token_ids": _EMPTY,
    "bad_words": _EMPTY,
    "best_of": (1,),
    "chat_template": (),
    "disable_additional_properties": _OFF,
    "disable_any_whitespace": _OFF,
    "detokenize": (True,),
    "documents": _EMPTY,
    "echo": _OFF,
    "enable_response_messages": _OFF,
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "include_stop_str_in_output": _OFF,
    "kv_transfer_params": _EMPTY,
    "length_penalty": (1,),
    "logits_processors": _EMPTY,
    "media_io_kwargs": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "prompt_embeds": _EMPTY,
    "prompt_logprobs": (),
    "repetition_detection": (),
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structural_tag": (),
    "thinking_token_budget": (),
    "truncation_side": ("left",),
    "use_beam_search": _OFF,
    "vllm_xargs": _EMPTY,
    "whitespace_pattern": (),
    # SGLang
    "custom_logit_processor": (),
    "custom_params": _EMPTY,
    "ebnf": (),
    "extra_key": (),
    "images_config": _EMPTY,
    "input_ids": (),
    "json_schema": (),
    "lora_path": (),
    "no_stop_trim": _OFF,
    "regex": (),
    "return_cached_tokens_details": _OFF,
    "return_hidden_states": _OFF,
    "return_routed_experts": _OFF,
    "separate_reasoning": (True,),
    "session_params": _EMPTY,
    "stop_regex": _EMPTY,
    "stream_reasoning": (True,),
    "reasoning": ({}, {"effort": "none"}),
    # OpenRouter's, and what OpenAI's client should have taken apart
    "extra_body": _EMPTY,
    "usage": ({}, {"include": True}),
    # llama.cpp
    "adaptive_target": (-1,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "grammar_lazy": _OFF,
    "image_data": _EMPTY,
    "input_extra": _EMPTY,
    "input_prefix": ("",),
    "input_suffix": ("",),
    "lora": _EMPTY,
    "min_keep": (0,),
    "mirostat": (0,),
    "n_cmpl": (1,),
    "n_discard": (0,),
    "n_indent": (0,),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "parse_tool_calls": (True,),
    "penalize_nl": _OFF,
    "post_sampling_probs": _OFF,
    "reasoning_budget": (-1,),
    "reasoning_format": (),
    "reasoning_in_content": _OFF,
    "repeat_penalty": (1,),
    "response_fields": _EMPTY,
    "return_progress": _OFF,
    "return_tokens": _OFF,
    "samplers": (),
    "t_max_predict_ms": (0,),
    "tfs_z": (1,),
    "thinking_forced_open": _OFF,
    "timings_per_token": _OFF,
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    # read on some endpoints of this server only
    "add_generation_prompt": (True,),
    "chat_template_kwargs": _EMPTY,
    "continue_final_message": _OFF,
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "tools": _EMPTY,
    "truncate_prompt_tokens": (),
}
"""What each changes in an answer is not implemented, except at these values and at null."""
