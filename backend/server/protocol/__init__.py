"""Requests and errors as they are on the wire; here, what the models of requests are made of.

Three kinds of fields: implemented ones; those that would change the answer and are not
implemented, which are refused unless they hold their neutral value (``only`` and ``REFUSED``); and
those that change no answer, which are ignored. All others are refused, unless the server allows
them.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

ALLOW_UNKNOWN = "allow_unknown"
"""In the validation's context: whether names that no server is known to read are ignored."""

_NAME = 100
"""How much of a field's name an error repeats."""

_HARMLESS = """
    cache_prompt custom_labels disable_fallback dry_allowed_length dry_base dry_penalty_last_n
    dry_sequence_breakers dynatemp_exponent guided_decoding_backend id_slot metadata mirostat_eta
    mirostat_tau prediction priority prompt_cache_key prompt_cache_options prompt_cache_retention
    repeat_last_n request_id rid safety_identifier service_tier store user xtc_threshold
"""
HARMLESS = frozenset(_HARMLESS.split())
"""No value of these changes an answer: they are about accounts, storage, scheduling and caches."""

_EMPTY: tuple[Any, ...] = ("", [], {})
_NEUTRAL: tuple[tuple[tuple[Any, ...], str], ...] = (
    (
        (False,),
        """
            continue_final_message disable_additional_properties disable_any_whitespace echo
            enable_response_messages grammar_lazy include_stop_str_in_output no_stop_trim
            penalize_nl post_sampling_probs reasoning_in_content return_cached_tokens_details
            return_hidden_states return_progress return_routed_experts return_token_ids
            return_tokens return_tokens_as_token_ids thinking_forced_open timings_per_token
            use_beam_search
        """,
    ),
    (
        _EMPTY,
        """
            allowed_token_ids bad_words chat_template_kwargs custom_params documents extra_body
            image_data images_config input_extra kv_transfer_params logits_processors lora
            media_io_kwargs mm_processor_kwargs prompt_embeds response_fields session_params
            stop_regex tools vllm_xargs
        """,
    ),
    (
        (),
        """
            add_special_tokens chat_template custom_logit_processor ebnf extra_key
            guided_whitespace_pattern input_ids json_schema lora_path max_tokens_per_doc
            prompt_logprobs reasoning_format regex repetition_detection samplers structural_tag
            thinking_token_budget truncate_prompt_tokens whitespace_pattern
        """,
    ),
    (
        (0,),
        """
            dry_multiplier dynatemp_range min_keep mirostat n_discard n_indent n_keep n_probs
            t_max_predict_ms xtc_probability
        """,
    ),
    (
        (True,),
        """
            add_generation_prompt detokenize include_reasoning parse_tool_calls separate_reasoning
            skip_special_tokens spaces_between_special_tokens stream_reasoning use_activation
        """,
    ),
    ((1,), "best_of length_penalty n_cmpl repeat_penalty tfs_z typical_p"),
    ((-1,), "adaptive_target n_predict reasoning_budget top_n_sigma"),
    (("",), "grammar input_prefix input_suffix"),
    (("left",), "truncation_side"),
    (({}, {"effort": "none"}), "reasoning"),
    (({}, {"include": True}), "usage"),
    (("none",), "reasoning_effort"),
    (({"type": "text"},), "response_format"),
)
REFUSED: Mapping[str, tuple[Any, ...]] = {
    name: neutral for neutral, names in _NEUTRAL for name in names.split()
}
"""Fields of OpenAI, vLLM, SGLang, llama.cpp and OpenRouter that would change an answer and are not
implemented. They are refused except at null and at these neutral values, even where unknown fields
are allowed: no client gets an answer without what it asked for.
"""


class Strict(BaseModel):
    """An object whose known fields have exactly their types; others are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Closed(Strict):
    """An object in which fields that are not known are refused by name, unless they are null."""

    @model_validator(mode="before")
    @classmethod
    def _know_all_fields(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        allow_unknown = bool(info.context and info.context.get(ALLOW_UNKNOWN))
        known = _names(cls)
        for name, given in value.items():
            if given is None or name in known:
                continue
            if name in REFUSED:
                if not _is_any(given, REFUSED[name]):
                    raise PydanticCustomError(
                        "unsupported_parameter", "", {"field": name, "neutral": REFUSED[name]}
                    )
            elif not allow_unknown:
                raise PydanticCustomError("unknown_parameter", "", {"field": name[:_NAME]})
        return value


@cache
def _names(schema: type[BaseModel]) -> frozenset[str]:
    return HARMLESS.union(field.alias or name for name, field in schema.model_fields.items())


def only(*neutral: Any) -> AfterValidator:
    """Accept null and the ``neutral`` values, at which a parameter changes nothing."""

    def check(value: Any) -> Any:
        if value is not None and not _is_any(value, neutral):
            raise PydanticCustomError("unsupported_parameter", "", {"neutral": neutral})
        return int(value) if isinstance(value, float) else value  # 1.0 is an integer in JSON

    return AfterValidator(check)


def _is_any(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(
        value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
        for allowed in neutral
    )


def one_of(expected: str, **type_of_tag: type) -> Discriminator:
    """Choose a union's branch by JSON type; ``expected`` names them all, and is the message."""

    def tag(value: Any) -> str | None:
        for name, kind in type_of_tag.items():
            if type(value) is kind:
                return f"<{name}>"
        return None

    return Discriminator(tag, custom_error_type="invalid_type", custom_error_message=expected)


def combination(message: str, param: str) -> PydanticCustomError:
    """Return the error of fields that are right but do not go together."""
    return worded(message, param, "invalid_parameter_combination")


def worded(message: str, param: str | None = None, code: str | None = None) -> PydanticCustomError:
    """Return an error in our words; ``param`` is where it is reported, None for where it is."""
    return PydanticCustomError(
        "worded", "{message}", {"message": message, "param": param, "code": code}
    )
