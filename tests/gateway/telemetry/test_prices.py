"""A price is found by the model's name; what the table does not say is unknown, never zero."""

import math
from dataclasses import replace

import pytest

from gateway.server.open.prices import MOST_BYTES, is_free, load_prices, read_price_file
from gateway.telemetry.prices import COLUMNS, MOST_PROBLEMS, Price, PricesError, read_prices
from gateway.upstream.settings import UpstreamSettings

HEAD = "model,input,output,cached_input\n"
TABLE = HEAD + (
    "gpt-4o,2.5,10,1.25\n"
    "gpt-4o-2024-05-13,5,15,\n"
    "azure/gpt-4o,3,12,\n"
    "embed,0.02,,\n"
    "free,0,0,0\n"
    "half,1,,\n"
)


@pytest.fixture
def table():
    return read_prices(TABLE, "prices.csv")


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-20240806", "gpt-4o"),
        ("gpt-4o@20240806", "gpt-4o"),
        ("azure/gpt-4o", "azure/gpt-4o"),
        ("azure/gpt-4o-2024-08-06", "azure/gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openrouter/openai/gpt-4o-2024-08-06", "gpt-4o"),
    ],
)
def test_a_model_is_found_by_its_name_without_date_and_without_provider(table, model, row):
    assert table.find(model) is table.rows[row]
    assert table.find(model) is table.rows[row]  # the second time from memory


@pytest.mark.parametrize(
    "model",
    ["", "/", "gpt-4", "gpt-4o-mini", "gpt-4o/", "GPT-4o", "gpt-4o-1234", "gpt-4o-20249999"],
)
def test_any_other_model_has_no_price(table, model):
    assert table.find(model) is None


def test_a_model_of_own_engines_is_free_unless_the_operators_file_has_a_row(table):
    own = read_prices(HEAD + "rented,1,2,\n", "mine.csv")
    prices = replace(table.updated(own), is_free=lambda model: model.startswith(("gpt", "rented")))
    assert prices.find("gpt-4o") == prices.find("gpt-unknown") == Price(0.0, 0.0, 0.0)
    assert prices.find("rented") is own.rows["rented"]
    assert prices.find("other") is None
    assert (prices.knows("gpt-unknown"), prices.knows("half"), prices.knows("other")) == (
        True,
        False,
        False,
    )


ENGINE = UpstreamSettings(preset="vllm", models=["qwen*"], rename={"fast": "qwen3"})
PROVIDER = UpstreamSettings(preset="openai", models=["gpt*", "qwen-max"])
ANY_ENGINE = UpstreamSettings(preset="ollama")
ANY_PROVIDER = UpstreamSettings(url="http://10.0.0.1/v1")


@pytest.mark.parametrize(
    ("upstreams", "model", "free"),
    [
        ([ENGINE, PROVIDER], "qwen3", True),
        ([ENGINE, PROVIDER], "fast", True),
        ([ENGINE, PROVIDER], "qwen-max", False),
        ([ENGINE, PROVIDER], "gpt-4o", False),
        ([ENGINE, PROVIDER], "other", False),
        ([ENGINE, ANY_PROVIDER], "qwen3", False),
        ([ANY_ENGINE], "whatever", True),
        ([ANY_PROVIDER], "whatever", False),
    ],
)
def test_a_model_is_free_where_every_upstream_that_may_get_it_is(upstreams, model, free):
    assert is_free(upstreams, model) is free


@pytest.mark.parametrize("preset", ["vllm", "sglang", "ollama", "llama.cpp", "refrain"])
def test_the_presets_of_engines_are_free(preset):
    assert UpstreamSettings(preset=preset, url="http://10.0.0.1/v1").is_free


def test_names_that_clients_make_up_take_bounded_memory(table):
    for number in range(5_000):
        table.find(f"model-{number}")
    assert len(table._found) <= 1_024  # the memory is not visible from outside
    long = "a/" * 500_000  # so many names are not looked for
    assert table.find(long) is None
    assert replace(table, is_free=lambda _: True).find(long) == Price(0.0, 0.0, 0.0)
    assert long not in table._found


def test_a_call_costs_its_tokens(table):
    assert math.isclose(table.find("gpt-4o").cost(1_000, 100, 400), 0.0025 + 0.001 - 0.0005)
    assert table.find("free").cost(1_000, 100, 400) == 0.0


def test_where_a_needed_price_is_unknown_the_cost_is_unknown(table):
    half = table.find("half")
    assert half.cost(1_000, 1) is None
    assert half.cost(1_000, 0) == pytest.approx(0.001)
    assert Price(output=1e-6).cost(1, 1) is None
    assert half.discount(10) is None
    assert half.discount(0) == 0.0
    assert half.cost(1_000, 0, 10) == pytest.approx(0.001)  # as dear as without a cache


def test_a_cached_token_that_is_dearer_saves_nothing():
    assert Price(1e-6, 1e-6, 2e-6).discount(10) == 0.0


def test_columns_come_in_any_order_and_cells_may_be_quoted():
    text = '# Contract of May\n\noutput, model ,cached_input,input\n10,"a, b",,"2.5"\n'
    table = read_prices(text, "own.csv")
    assert table.rows == {"a, b": Price(2.5e-6, 10e-6, None)}
    assert table.source == "Contract of May"


def test_the_operator_s_rows_replace_those_of_the_same_model(table):
    own = read_prices(HEAD + "gpt-4o,1,2,\nembed,,,\n", "own.csv")
    both = table.updated(own)
    assert both.find("gpt-4o") == Price(1e-6, 2e-6, None)
    assert both.find("azure/gpt-4o") == Price(3e-6, 12e-6, None)
    assert both.find("embed").cost(1, 0) is None
    assert both.source == "own.csv; prices.csv"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "p:1: expected the columns model, input, output, cached_input, got none"),
        ("# only this\n", "p:1: expected the columns model, input, output, cached_input, got none"),
        (
            "model,price\n",
            "p:1: expected the columns model, input, output, cached_input, got model, price",
        ),
        (HEAD + "a,1,2\n", "p:2: expected 4 cells, got 3"),
        (HEAD + ",1,2,\n", "p:2: model: expected a name, got an empty cell"),
        (
            HEAD + "a,1,2,\na,1,2,\n",
            "p:3: model: expected each model once, 'a' is there twice",
        ),
    ],
)
def test_a_bad_line_is_named(text, problem):
    with pytest.raises(PricesError) as refused:
        read_prices(text, "p")
    assert str(refused.value) == problem


@pytest.mark.parametrize("cell", ["-1", "nan", "inf", "1e9", "$2", "free"])
def test_a_price_is_a_number_of_dollars(cell):
    expected = f"p:3: input: expected dollars for a million tokens, or an empty cell, got {cell!r}"
    with pytest.raises(PricesError) as refused:
        read_prices(HEAD + f"# 1\na,{cell},2,\n", "p")
    assert str(refused.value) == expected


def test_all_bad_lines_are_named_up_to_a_bound():
    with pytest.raises(PricesError) as refused:
        read_prices(HEAD + "a,x,y,\n" * 30, "p")
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("p:2: input:")
    assert lines[1].startswith("p:2: output:")
    assert len(lines) == MOST_PROBLEMS + 1
    assert lines[-1] == "p: 40 more lines are wrong"


def test_a_file_of_an_operator_is_text_of_bounded_size():
    assert read_price_file(("\ufeff" + TABLE).encode(), "own.csv").find("gpt-4o") is not None
    with pytest.raises(PricesError, match=r"own.csv:2: expected UTF-8 text, got the byte 0xff"):
        read_price_file(HEAD.encode() + b"\xff", "own.csv")
    with pytest.raises(PricesError, match=r"own.csv: expected at most \d+ bytes"):
        read_price_file(b" " * (MOST_BYTES + 1), "own.csv")


def test_what_is_free_for_one_gateway_has_its_price_for_another_in_the_process():
    assert replace(load_prices(), is_free=lambda _: True).find("gpt-4o") == Price(0.0, 0.0, 0.0)
    assert replace(load_prices(), is_free=lambda _: False).find("gpt-4o").input > 0


def test_the_shipped_table_has_a_source_and_no_free_model(tmp_path):
    shipped = load_prices()
    assert shipped.source.startswith("litellm ")
    assert "MIT License" in shipped.source
    assert len(shipped.rows) > 1_000
    assert all(price.input for price in shipped.rows.values())
    for model in ("gpt-4o", "claude-sonnet-4-5", "gemini-2.5-pro", "azure/gpt-4o", "deepseek-chat"):
        price = shipped.find(model)
        assert None not in price
        assert price.cached < price.input < price.output
    assert shipped.find("text-embedding-3-small").cost(10, 0) > 0
    own = tmp_path / "own.csv"
    own.write_text(HEAD + "my-model,1,2,\n")
    assert load_prices(own).find("my-model") == Price(1e-6, 2e-6, None)
    assert load_prices(own).find("gpt-4o") == shipped.find("gpt-4o")
    with pytest.raises(OSError, match=r"own\.txt"):
        load_prices(tmp_path / "own.txt")


def test_the_columns_are_those_of_the_documentation():
    assert ",".join(COLUMNS) + "\n" == HEAD
