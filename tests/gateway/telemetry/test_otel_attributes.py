"""The names of providers, and what answers of each form say of themselves."""

import pytest

from gateway.telemetry.observation import AnswerFacts, Place
from gateway.telemetry.otel.attributes import answer_facts, provider_of
from gateway.upstream.settings import presets


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("api.openai.com", "openai"),
        ("eu.api.openai.com", "openai"),
        ("ours.openai.azure.com", "azure.ai.openai"),
        ("generativelanguage.googleapis.com", "gcp.gemini"),
        ("europe-west4-aiplatform.googleapis.com", "gcp.vertex_ai"),
        ("api.anthropic.com", "anthropic"),
        ("bedrock-runtime.eu-west-1.amazonaws.com", "aws.bedrock"),
        ("api.x.ai", "x_ai"),
        ("notx.ai", "openai_compatible"),
        ("api.openai.com.evil.example", "openai_compatible"),
        ("10.0.0.1", "openai_compatible"),
    ],
)
def test_a_host_tells_its_provider(host, provider):
    assert provider_of(Place("u", host, 443)) == provider


def test_a_preset_comes_before_the_host_and_each_has_a_provider():
    named = {name: provider_of(Place("u", "api.openai.com", 443, name)) for name in presets()}
    assert named["azure"] == "azure.ai.openai"
    assert named["gemini"] == "gcp.gemini"
    assert named["vllm"] == "vllm"
    assert all(named.values())


def test_an_api_of_anthropics_form_is_anthropics():
    assert provider_of(Place("u", "10.0.0.1", 443, api="anthropic")) == "anthropic"


@pytest.mark.parametrize(
    ("result", "facts"),
    [
        (
            {"id": "a", "model": "m", "choices": [{"finish_reason": "stop"}, {"text": ""}, 7]},
            AnswerFacts("m", "a", ("stop",)),
        ),
        (
            {"id": "a", "model": "m", "type": "message", "stop_reason": "end_turn"},
            AnswerFacts("m", "a", ("end_turn",)),
        ),
        (
            {
                "id": "r",
                "model": "m",
                "object": "response",
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
            },
            AnswerFacts("m", "r", ("max_output_tokens",)),
        ),
        (
            {"id": "r", "object": "response", "status": "completed", "incomplete_details": None},
            AnswerFacts(None, "r", ("completed",)),
        ),
        ({"object": "list", "model": "e", "data": []}, AnswerFacts("e", None, ())),
        ({"model": "\ud800", "choices": "odd"}, AnswerFacts("?", None, ())),
        ([1], None),
        (None, None),
    ],
)
def test_an_answer_of_any_form_says_its_model_id_and_reasons(result, facts):
    assert answer_facts(result) == facts
