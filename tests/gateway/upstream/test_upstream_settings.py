"""An upstream in refrain.yaml: which forms it may have, and how a wrong one is told."""

import tomllib
from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, load_settings
from gateway.upstream.settings import UpstreamSettings, alias_identities, presets

URL = "http://a.example/v1"


def read(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "refrain.yaml"
    file.write_text(f"upstreams:\n  - {text}\n")
    return load_settings({}, {}, file)


@pytest.mark.parametrize(
    "url",
    [
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "https://ark.example/api/v3",
        "https://me.openai.azure.com/openai/v1",
        "https://me.openai.azure.com/openai/deployments/gpt-4o_mini.2",
        "http://127.0.0.1:8000/v1",
        "http://[::1]:8000/v1",
    ],
)
def test_any_base_path_is_accepted_in_both_forms(tmp_path: Path, url: str):
    [upstream] = read(tmp_path, f"url: {url}/").all_upstreams
    assert (upstream.url, upstream.query, upstream.identity) == (url, {}, url)
    assert load_settings({"upstream": [url]}, {}, None).all_upstreams[0].url == url


@pytest.mark.parametrize(
    "text",
    [
        f"url: {URL}?api-version=2024-10-21",
        f"url: {URL}/?api-version=2024-10-21",
        f"url: {URL}\n    query: {{api-version: 2024-10-21}}",
    ],
)
def test_a_fixed_query_stands_in_the_url_or_in_its_own_key(tmp_path: Path, text: str):
    settings = read(tmp_path, text)
    [upstream] = settings.all_upstreams
    assert (upstream.url, upstream.query) == (URL, {"api-version": "2024-10-21"})
    assert settings.upstream_identity == f"{URL}?api-version=2024-10-21"
    again = Settings.model_validate_json(settings.model_dump_json())
    assert again.all_upstreams == settings.all_upstreams


def test_an_upstream_by_its_url_alone_may_have_a_query():
    settings = load_settings({"upstream": [f"{URL}?api-version=1"]}, {}, None)
    [upstream] = settings.all_upstreams
    assert (upstream.url, upstream.query) == (URL, {"api-version": "1"})


def test_fixed_headers_are_part_of_what_keys_say_of_an_upstream():
    def identity(**headers: str | dict[str, str]) -> str:
        [one] = Settings(upstreams=({"url": URL, "headers": headers},)).all_upstreams
        return one.identity

    assert identity() == URL
    one = identity(**{"X-Version": "secret-1", "X-Other": {"env": "OTHER"}})
    assert one == identity(**{"x-other": {"env": "OTHER"}, "x-version": "secret-1"})
    others = {identity(**{"X-Version": value}) for value in ("secret-1", "2", {"env": "V"})}
    assert len({one, *others, identity()}) == 5
    assert "secret-1" not in one


def test_headers_are_texts_or_names_of_variables(tmp_path: Path):
    text = f"url: {URL}\n    headers: {{X-Team: search, X-Pass: {{env: PASS}}}}"
    settings = read(tmp_path, text)
    [upstream] = settings.all_upstreams
    assert upstream.headers["X-Team"].text == "search"
    assert upstream.headers["X-Pass"].env == "PASS"
    assert "search" not in repr(settings)
    again = Settings.model_validate_json(settings.model_dump_json())
    assert again.all_upstreams == settings.all_upstreams


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("url: http://a", "url: expected a base path, as in http://a/v1"),
        ("url: http://a/", "url: expected a base path"),
        ("url: http://a/v1/../admin", "url: expected a base path of plain segments"),
        ("url: http://a/v1//x", "url: expected a base path of plain segments"),
        ("url: 'http://a/v1;x'", "url: expected a base path of plain segments"),
        ("url: 'http://a\\b/v1'", "url: expected a URL such as"),
        ("url: http://a/v1/chat/completions", "without /chat/completions, which the gateway adds"),
        ("url: http://a/v1/models", "without /models, which the gateway adds"),
        ("url: 'http://a/v1#x'", "url: expected no # in the URL of a"),
        ("url: 'http://a/v1?b=1#x'", "expected no # in the URL of a"),
        ("url: http://a/v1?b=1&b=2", "expected each name once in the query"),
        ("url: http://a/v1?b=1\n    query: {b: 2}", "expected each name once: in the query of"),
        ("url: http://a/v1?a b=1", "expected names of letters, digits"),
        ("url: http://a/v1\n    query: [b]", "query: expected a mapping such as"),
        ("url: http://a/v1\n    query: {b: [1]}", "query: expected a text for b in the query"),
        ("url: http://a/v1\n    auth: basic", "auth: expected one of bearer, api-key, x-api-key"),
        (
            "url: http://a/v1\n    auth: none\n    api_key_env: K",
            "expected no key beside auth: none",
        ),
        ("url: http://a/v1\n    api: cohere", "api: expected one of openai, anthropic"),
        ("url: http://a/v1\n    headers: [X-A]", "headers: expected a mapping such as"),
        ("url: http://a/v1\n    headers: {X A: b}", "headers: expected names of headers"),
        ("url: http://a/v1\n    headers: {'X-A:': b}", "headers: expected names of headers"),
        ("url: http://a/v1\n    headers: {X-A: b, x-a: c}", "headers: expected each header once"),
        ("url: http://a/v1\n    headers: {Host: b}", "expected no Host: the gateway sets it"),
        ("url: http://a/v1\n    headers: {content-length: '1'}", "expected no content-length"),
        ("url: http://a/v1\n    headers: {Transfer-Encoding: b}", "expected no Transfer-Encoding"),
        ("url: http://a/v1\n    headers: {Connection: b}", "expected no Connection"),
        ("url: http://a/v1\n    headers: {Proxy-Authorization: b}", "expected no Proxy-Auth"),
        ("url: http://a/v1\n    headers: {Via: b}", "expected no Via"),
        ("url: http://a/v1\n    headers: {Accept-Encoding: b}", "expected no Accept-Encoding"),
        ("url: http://a/v1\n    headers: {X-Refrain-Priority: b}", "expected no X-Refrain-"),
        (
            "url: http://a/v1\n    headers: {Authorization: b}",
            "expected no Authorization: for the upstream's key there are auth: and api_key_env",
        ),
        ("url: http://a/v1\n    headers: {X-A: {env: 'a b'}}", "expected a text for X-A, or {env"),
        ("url: http://a/v1\n    headers: {X-A: {file: b}}", "expected a text for X-A, or {env"),
        ("url: http://a/v1\n    headers: {X-A: 5}", "expected a text for X-A, or {env"),
        ("url: http://a/v1\n    query: {api-version: 2024.10}", "expected a text for api-version"),
    ],
)
def test_a_wrong_address_is_told_with_file_line_and_key(tmp_path: Path, more: str, told: str):
    with pytest.raises(SettingsError) as error:
        read(tmp_path, more)
    assert told in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'refrain.yaml'}:")


@pytest.mark.parametrize(
    ("rename", "told"),
    [
        ("[a]", "rename: expected a mapping such as {gpt-4o: my-deployment}"),
        ("{a: ''}", "rename: expected the names of two models"),
        ("{a: 5}", "rename: expected the names of two models"),
        ('{a: "b\\nc"}', "rename: expected the names of two models"),
        ("{'gpt-*': b}", "expected the name of one model, which gpt-* is not"),
        ("{a: a}", "expected another name for a: it stands for itself"),
        ("{a: b, b: c}", "expected the upstream's own name for a: b is an alias itself"),
        ("{a: b, b: a}", "expected the upstream's own name for a: b is an alias itself"),
    ],
)
def test_a_wrong_alias_is_told_with_file_line_and_key(tmp_path: Path, rename: str, told: str):
    with pytest.raises(SettingsError) as error:
        read(tmp_path, f"url: {URL}\n    rename: {rename}")
    assert str(error.value).startswith(f"{tmp_path / 'refrain.yaml'}:3: upstreams[0].rename: ")
    assert told in str(error.value)


QWEN = {"url": "http://a/v1", "models": ["qwen*"]}
LLAMA = {"url": "http://b/v1", "rename": {"fast": "llama"}}
ANY = {"url": "http://c/v1"}


@pytest.mark.parametrize(
    ("listed", "given", "refuses"),
    [
        ((QWEN, LLAMA), None, True),
        ((QWEN, ANY), None, False),
        ((QWEN,), None, False),
        ((ANY,), None, False),
        ((QWEN, LLAMA), "pass", False),
        ((QWEN,), "refuse", True),
    ],
)
def test_unknown_models_are_refused_if_several_upstreams_declare_theirs(listed, given, refuses):
    settings = Settings(upstreams=listed, unknown_models=given)
    assert settings.refuses_unknown_models is refuses


def test_what_keys_say_of_an_alias_names_the_first_upstream_and_all_models():
    def identities(*upstreams):
        return alias_identities(Settings(upstreams=upstreams).all_upstreams)

    alone = identities(LLAMA)
    assert alone == {"fast": 'http://b/v1#["llama"]'}
    replica = {**LLAMA, "url": "http://b2/v1"}
    assert identities(LLAMA, replica, QWEN, ANY) == alone
    assert identities(replica, LLAMA) != alone
    assert identities({**LLAMA, "rename": {"fast": "other"}}) != alone
    assert identities(LLAMA, {**replica, "rename": {"fast": "other"}}) != alone
    assert identities(LLAMA, {"url": "http://d/v1", "models": ["fast"]}) != alone


SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"url: http://me:{SECRET}@a/v1",
        f"url: http:/me:{SECRET}@a/v1",
        f"url: //me:{SECRET}@a/v1",
        f"url: http://a/v1?key={SECRET}",
        f"url: http://a/v1?api_key={SECRET}",
        f"url: ftp://a/v1?b={SECRET}",
        f"url: http://a?b={SECRET}",
        f"url: http://a/v1?b=1#{SECRET}",
        f"url: http://a/v1\n    query: {{subscription-key: {SECRET}}}",
        f"url: http://a/v1\n    query: {{ocp-apim-subscription-key: {SECRET}}}",
        f"url: http://a/v1?x-api-key={SECRET}",
        f"url: http://a/v1\n    query: {{b: ['{SECRET}']}}",
        f"url: http://a/v1\n    query: {SECRET}",
        f'url: http://a/v1\n    headers: {{X-A: "{SECRET}\\r\\nX-B: c"}}',
        f"url: http://a/v1\n    headers: {{X-A: {SECRET}é}}",
        f"url: http://a/v1\n    headers: {{X-A: ['{SECRET}']}}",
        f"url: http://a/v1\n    headers: {{Authorization: Bearer {SECRET}}}",
        f"url: http://a/v1\n    headers: {SECRET}",
        f"url: http://a/v1\n    headers: {{x-goog-api-key: {SECRET}}}",
        f"url: http://a/v1\n    headers: {{X-Auth-Token: {SECRET}}}",
        f"url: http://a/v1\n    headers: {{Cookie: {{text: {SECRET}}}}}",
        f"url: http://a/v1\n    headers: {{X-A: {{env: '{SECRET} '}}}}",
    ],
)
def test_what_may_be_a_secret_is_not_quoted(tmp_path: Path, text: str):
    with pytest.raises(SettingsError, match="expected ") as error:
        read(tmp_path, text)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("name", sorted(presets()))
def test_each_preset_is_an_upstream(name: str):
    given = {"preset": name}
    if needed := presets()[name].get("needs_url"):
        given["url"] = needed
    settings = Settings(upstreams=(given,))
    [upstream] = settings.all_upstreams
    assert upstream.url.startswith("http")
    assert upstream.accepts is not None
    again = Settings.model_validate_json(settings.model_dump_json())
    assert again.all_upstreams == settings.all_upstreams


def test_a_preset_knows_address_key_and_form():
    listed = ({"preset": "anthropic"}, {"preset": "gemini"})
    anthropic, gemini = Settings(upstreams=listed).all_upstreams
    assert (anthropic.url, anthropic.auth) == ("https://api.anthropic.com/v1", "x-api-key")
    assert (anthropic.api, gemini.api) == ("anthropic", "openai")
    assert gemini.url.endswith("/v1beta/openai")


def test_what_is_given_beside_a_preset_counts():
    given = {
        "preset": "anthropic",
        "url": "http://a/v1",
        "accepts": (),
        "auth": "bearer",
        "headers": {"Anthropic-Version": "2026-01-01", "X-A": "b"},
    }
    [upstream] = Settings(upstreams=(given,)).all_upstreams
    assert (upstream.url, upstream.accepts, upstream.auth) == ("http://a/v1", (), "bearer")
    headers = {name: value.text for name, value in upstream.headers.items()}
    assert headers == {"Anthropic-Version": "2026-01-01", "X-A": "b"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("preset: gemni", "for preset, got 'gemni'; is gemini meant?"),
        ("preset: llamacpp", "is llama.cpp meant?"),
        ("preset: 5", "for preset, got 5"),
        ("preset: [openai]", "expected one of openai, azure"),
        ("preset: azure", "expected a url beside preset: azure, such as https://RESOURCE.openai"),
        ("preset: llama.cpp", "expected a url beside preset: llama.cpp"),
        ("preset: openai\n    url: ftp://a", "url: expected a URL such as"),
    ],
)
def test_a_wrong_preset_is_told(tmp_path: Path, text: str, told: str):
    with pytest.raises(SettingsError) as error:
        read(tmp_path, text)
    assert told in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'refrain.yaml'}:")


def test_the_table_of_presets_is_packaged():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert "upstream/*.yaml" in project["tool"]["setuptools"]["package-data"]["gateway"]


@pytest.mark.parametrize(
    ("given", "api", "auth"),
    [
        ({"url": "https://api.anthropic.com/v1"}, "anthropic", "x-api-key"),
        ({"url": "https://API.Anthropic.com:443/v1"}, "anthropic", "x-api-key"),
        ({"url": "https://anthropic.com.example.org/v1"}, "openai", "bearer"),
        ({"url": "https://notanthropic.com/v1"}, "openai", "bearer"),
        ({"url": "https://api.anthropic.com/v1", "api": "openai"}, "openai", "bearer"),
        ({"url": "http://127.0.0.1:9/v1", "api": "anthropic"}, "anthropic", "x-api-key"),
        (
            {"url": "http://127.0.0.1:9/v1", "api": "anthropic", "auth": "bearer"},
            "anthropic",
            "bearer",
        ),
    ],
)
def test_anthropics_api_is_known_by_its_host(given, api, auth):
    one = UpstreamSettings(**given)
    assert (one.api, one.auth) == (api, auth)
