"""Make gateway/telemetry/prices.csv of the price list inside the package ``litellm``.

    pip download --no-deps litellm && unzip litellm-*.whl -d litellm-VERSION
    python -m tools.prices litellm-VERSION/litellm/model_prices_and_context_window_backup.json \
        --version VERSION --date 2026-11-24

Law: a price that the list does not give is left empty. The list has zeros for prices that are
unknown, or part of a subscription, so a zero counts as no price.
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "gateway" / "telemetry" / "prices.csv"
MODES = frozenset({"chat", "completion", "embedding", "responses"})

OWN_NAMES = frozenset(
    {
        *("anthropic", "cerebras", "codestral", "cohere", "dashscope", "deepseek", "fireworks_ai"),
        *("gemini", "groq", "minimax", "mistral", "moonshot", "perplexity", "voyage", "xai", "zai"),
    }
)
"""Providers whose own API takes the name without the list's prefix."""

PROVIDERS = OWN_NAMES | {
    *("ai21", "amazon_nova", "azure", "azure_ai", "azure_text", "baseten", "bedrock"),
    *("bedrock_converse", "cloudflare", "cohere_chat", "databricks", "deepinfra"),
    *("fireworks_ai-embedding-models", "friendliai", "hyperbolic", "lambda_ai", "meta_llama"),
    *("nebius", "novita", "nscale", "openai", "ovhcloud", "sambanova", "scaleway"),
    *("text-completion-openai", "together_ai", "wandb", "watsonx"),
}

HEAD = """\
# litellm {version} (MIT License, Copyright (c) 2023 Berri AI), {date}
# Dollars for a million tokens, made by tools/prices of model_prices_and_context_window_backup.json.
# An empty cell is an unknown price. The license of the list:
"""
LICENSE = """\
# Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
# associated documentation files (the "Software"), to deal in the Software without restriction,
# including without limitation the rights to use, copy, modify, merge, publish, distribute,
# sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions: The above copyright notice and this
# permission notice shall be included in all copies or substantial portions of the Software. THE
# SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
# LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
# NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
# DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
# OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

Row = tuple[str, str, str]

_REGION = re.compile(r"^(us|eu|apac|global|au|jp)\.")
"""Before a model's name, where a provider has it in several regions."""


def main() -> int:
    """Write the file, and print how many models it has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("list", type=Path, help="model_prices_and_context_window_backup.json")
    parser.add_argument("--version", required=True, help="of litellm")
    parser.add_argument("--date", required=True, help="of the download, such as 2026-11-24")
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    rows = price_rows(json.loads(given.list.read_text("utf-8")))
    with given.out.open("w", encoding="utf-8", newline="") as file:
        file.write(HEAD.format(version=given.version, date=given.date) + LICENSE)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "input", "output", "cached_input"))
        writer.writerows((model, *rows[model]) for model in sorted(rows, key=_place))
    print(f"{given.out}: {len(rows)} models, {given.out.stat().st_size} bytes")
    return 0


def _place(model: str) -> tuple[str, str]:
    """Return where a row stands: rows of one model stand together, and so the wheel is smaller."""
    return _REGION.sub("", model.rpartition("/")[2]), model


def price_rows(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Row]:
    """Return input, output and cached input in dollars for a million tokens, by model.

    A name without its provider counts if all providers that use the name agree on its price.
    """
    rows: dict[str, Row] = {}
    own: dict[str, set[Row]] = {}
    for name, model in models.items():
        provider = model.get("litellm_provider")
        if model.get("mode") not in MODES or not known(provider):
            continue
        paid = _price(model.get("input_cost_per_token"))
        if not paid:
            continue
        output = _price(model.get("output_cost_per_token"))
        if model["mode"] == "embedding":
            output = output or "0"
        rows[name] = row = paid, output, _price(model.get("cache_read_input_token_cost"))
        for short in _own_names(name):
            own.setdefault(short, set()).add(row)
    for short, found in own.items():
        if short not in rows and len(found) == 1:
            rows[short] = found.pop()
    return rows


def known(provider: object) -> bool:
    """Tell whether the prices of a provider are taken over."""
    return isinstance(provider, str) and (provider in PROVIDERS or provider.startswith("vertex_ai"))


def _own_names(name: str) -> Iterator[str]:
    provider, slash, short = name.partition("/")
    # The names of open models are used by all who serve them, also at other prices.
    is_own = "/" not in short or short.startswith("accounts/fireworks/")
    if slash and provider in OWN_NAMES and is_own:
        yield short


def _price(dollars: object) -> str:
    """Return the dollars for a million tokens, empty where there is no price."""
    if not isinstance(dollars, int | float) or dollars <= 0:
        return ""
    return f"{dollars * 1_000_000:.10g}"


if __name__ == "__main__":
    sys.exit(main())
