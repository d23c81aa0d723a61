"""The shipped price table is made of an open list: no price there is no price here."""

import json
import sys

from gateway.telemetry.prices import Price, read_prices
from tools.prices import __main__ as tool

LIST = {
    "sample_spec": {"mode": "one of: chat", "input_cost_per_token": 0.0},
    "gpt-4o": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 2.5e-06,
        "output_cost_per_token": 1e-05,
        "cache_read_input_token_cost": 1.25e-06,
    },
    "groq/fast": {
        "litellm_provider": "groq",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 2e-06,
    },
    "xai/same": {"litellm_provider": "xai", "mode": "chat", "input_cost_per_token": 1e-06},
    "mistral/same": {"litellm_provider": "mistral", "mode": "chat", "input_cost_per_token": 2e-06},
    "groq/org/open": {"litellm_provider": "groq", "mode": "chat", "input_cost_per_token": 1e-06},
    "azure/embed": {
        "litellm_provider": "azure",
        "mode": "embedding",
        "input_cost_per_token": 2e-08,
        "output_cost_per_token": 0.0,
    },
    "zero": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 0.0,
        "output_cost_per_token": 1e-06,
    },
    "zero-output": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 0,
    },
    "drawing": {"litellm_provider": "openai", "mode": "image_generation"},
    "unknown/model": {
        "litellm_provider": "somebody",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
    },
}


def test_the_list_becomes_a_table_without_guesses(tmp_path, monkeypatch, capsys):
    given, out = tmp_path / "list.json", tmp_path / "prices.csv"
    given.write_text(json.dumps(LIST))
    argv = ["prices", str(given), "--version", "1.2.3", "--date", "2026-11-24", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", argv)
    assert tool.main() == 0
    assert "8 models" in capsys.readouterr().out
    table = read_prices(out.read_text(), "prices.csv")
    assert table.source == "litellm 1.2.3 (MIT License, Copyright (c) 2023 Berri AI), 2026-11-24"
    assert table.rows == {
        "gpt-4o": Price(2.5e-06, 1e-05, 1.25e-06),
        "groq/fast": Price(1e-06, 2e-06, None),
        "fast": Price(1e-06, 2e-06, None),  # the name in the provider's own API
        "xai/same": Price(1e-06, None, None),  # two providers do not agree on the price of "same"
        "mistral/same": Price(2e-06, None, None),
        "groq/org/open": Price(1e-06, None, None),  # an open model's name is no provider's own
        "azure/embed": Price(2e-08, 0.0, None),
        "zero-output": Price(1e-06, None, None),
    }
