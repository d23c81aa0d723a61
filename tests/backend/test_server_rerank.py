"""/v1/rerank and /v1/score: the library's scores, the forms of Cohere, Jina and vLLM, refusals."""

import shutil
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backend.app import create_app
from backend.models.config import ModelLoadError
from backend.server import rerank as handlers
from backend.settings import Settings

pytest_plugins = ["running_backend", "running_embedder", "tiny_encoders"]

QUERY = "b d f"
TEXTS = ["a b c d e f g h", "j", "a a b", "e f g d c . b a h i j"]
LONG = "a b c d e f g h i j " * 6


@pytest.fixture
def serve_reranker(serve_application):
    async def start(directory, **settings):
        settings = Settings(str(directory), served_model_name="ranker", device="cpu", **settings)
        server = await serve_application(create_app(settings))
        await server.model.load()
        return server

    return start


@pytest.fixture
async def server(serve_reranker, rerankers):
    return await serve_reranker(rerankers / "bert")


def predicted(directory, pairs):
    from sentence_transformers import CrossEncoder

    # RoBERTa has positions for fewer tokens than its tokenizer says.
    longest = 24 if directory.name == "roberta" else None
    model = CrossEncoder(str(directory), device="cpu", local_files_only=True, max_length=longest)
    return model.predict([list(pair) for pair in pairs], show_progress_bar=False).tolist()


async def rank(server, documents=TEXTS, **fields):
    body = {"model": "ranker", "query": QUERY, "documents": documents, **fields}
    return await server.post("/v1/rerank", body)


@pytest.mark.parametrize("name", ["bert", "roberta", "qwen3"])
async def test_scores_are_the_librarys_in_order_and_a_long_pair_is_cut_as_there(
    serve_reranker, rerankers, name
):
    texts = [*TEXTS, LONG]
    expected = predicted(rerankers / name, [(QUERY, text) for text in texts])
    assert max(expected) - min(expected) > 0.01
    server = await serve_reranker(rerankers / name)
    reply = (await rank(server, texts, truncate_prompt_tokens=-1)).json
    scores = [result["relevance_score"] for result in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    by_index = {result["index"]: result["relevance_score"] for result in reply["results"]}
    assert [by_index[index] for index in range(len(texts))] == pytest.approx(expected, abs=1e-5)
    body = {"model": "ranker", "text_1": QUERY, "text_2": texts, "truncate_prompt_tokens": -1}
    scored = (await server.post("/v1/score", body)).json
    assert [item["score"] for item in scored["data"]] == pytest.approx(expected, abs=1e-5)
    assert scored["usage"] == reply["usage"]


async def test_the_best_documents_come_back_with_their_texts_on_request(server):
    whole = (await rank(server)).json
    assert whole["model"] == "ranker"
    assert set(whole["results"][0]) == {"index", "relevance_score"}
    assert whole["usage"]["total_tokens"] == sum(
        len(f"{QUERY} {text}".split()) + 3 for text in TEXTS
    )
    documents = [{"text": TEXTS[0], "title": "first"}, *TEXTS[1:]]
    best = (await rank(server, documents, top_n=2, return_documents=True)).json["results"]
    assert [each.pop("document") for each in best] == [
        {"text": TEXTS[each["index"]]} for each in whole["results"][:2]
    ]
    assert best == whole["results"][:2]
    assert (await rank(server, top_n=0)).json["results"] == whole["results"]


async def test_texts_are_scored_one_by_one_or_one_with_each(server, rerankers):
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    body = {"model": "ranker", "text_1": TEXTS, "text_2": TEXTS[::-1]}
    reply = (await server.post("/v1/score", body)).json
    assert (reply["object"], reply["model"]) == ("list", "ranker")
    assert [item["index"] for item in reply["data"]] == list(range(4))
    scores = [item["score"] for item in reply["data"]]
    assert scores == pytest.approx(predicted(rerankers / "bert", pairs), abs=1e-5)
    one = (await server.post("/v1/score", body | {"text_1": TEXTS[0], "text_2": TEXTS[3]})).json
    assert [item["score"] for item in one["data"]] == pytest.approx(scores[:1], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        ("rerank", {"query": None}, "query", "missing_required_parameter"),
        ("rerank", {"query": ""}, "query", "empty_string"),
        ("rerank", {"documents": []}, "documents", "empty_array"),
        ("rerank", {"documents": "a"}, "documents", "invalid_type"),
        ("rerank", {"documents": ["a", 5]}, "documents[1]", "invalid_type"),
        ("rerank", {"documents": [{"image": "a"}]}, "documents[0].text", None),
        ("rerank", {"documents": ["a"] * 2049}, "documents", "array_above_max_length"),
        ("rerank", {"documents": ["a", LONG]}, "documents[1]", "context_length_exceeded"),
        ("rerank", {"top_n": -1}, "top_n", "integer_below_min_value"),
        ("rerank", {"max_tokens_per_doc": 5}, "max_tokens_per_doc", "unsupported_parameter"),
        ("rerank", {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", None),
        ("rerank", {"rank_fields": ["a"]}, "rank_fields", "unknown_parameter"),
        ("score", {"text_1": None}, "text_1", "missing_required_parameter"),
        ("score", {"text_2": [1]}, "text_2[0]", "invalid_type"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a"] * 3}, "text_1", None),
        ("score", {"text_2": LONG}, "text_2", "context_length_exceeded"),
        ("score", {"text_2": ["a", LONG]}, "text_2[1]", "context_length_exceeded"),
        ("score", {"use_activation": False}, "use_activation", "unsupported_parameter"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_refusals(server, path, fields, param, code):
    given = {"query": QUERY, "documents": TEXTS}
    given = given if path == "rerank" else {"text_1": QUERY, "text_2": TEXTS}
    reply = await server.post(f"/v1/{path}", {"model": "ranker", **given, **fields})
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert reply.error["param"] == param
    assert code in (None, reply.error["code"])


async def test_one_text_in_each_of_many_pairs_counts_each_time(server, monkeypatch):
    monkeypatch.setattr(handlers, "MAX_CHARACTERS_OF_A_PAIR", 30_000)
    for documents, words in ((["a"] * 2000, 10_000), (["a"], 20_000)):
        reply = await rank(server, documents, query="a " * words)
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")


async def test_large_pairs_take_turns_with_others_and_keep_their_order(server, monkeypatch):
    small = (await rank(server, TEXTS, truncate_prompt_tokens=-1)).json["results"]
    sizes = []
    loaded = server.model.require_reranker("ranker")
    encode_pairs = loaded.encode_pairs

    def noted(pairs, cut):
        sizes.append(len(pairs))
        return encode_pairs(pairs, cut)

    monkeypatch.setattr(server.model, "_loaded", replace(loaded, encode_pairs=noted))
    large = [TEXTS[0] + " a" * 70_000, *TEXTS[1:], *["j"] * 20, TEXTS[3] + " j" * 70_000]
    ranked = (await rank(server, large, truncate_prompt_tokens=-1)).json["results"]
    assert sizes == [1, 16, 7, 1]
    scores = {each["index"]: each["relevance_score"] for each in ranked}
    for each in small:
        if each["index"] in {1, 2, 3}:
            assert scores[each["index"]] == pytest.approx(each["relevance_score"], abs=1e-5)


async def test_other_endpoints_say_what_the_model_is_for_and_figures_count_it(server):
    chat = {"model": "ranker", "messages": [{"role": "user", "content": "a"}]}
    reply = await server.post("/v1/chat/completions", chat)
    assert (reply.status, "Did you mean to use v1/rerank?" in reply.error["message"]) == (404, True)
    reply = await server.post("/v1/embeddings", {"model": "ranker", "input": "a"})
    assert (reply.status, "Did you mean to use v1/rerank?" in reply.error["message"]) == (404, True)
    tokens = (await rank(server)).json["usage"]["total_tokens"]
    assert (await server.post("/tokenize", {"prompt": "a b"})).json["count"] == 4
    page = (await server.get("/metrics")).raw.decode()
    families = text_string_to_metric_families(page)
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert values["refrain_engine_embedded_tokens_total"] == tokens
    assert values["refrain_engine_embeddings_waiting"] == 0


async def test_a_model_that_embeds_does_not_rank(embedding_server):
    body = {"model": "minilm", "query": "a", "documents": ["b"]}
    reply = await embedding_server.post("/v1/rerank", body)
    assert (reply.status, reply.error["param"]) == (404, "model")
    assert "is not a reranker" in reply.error["message"]
    assert "Did you mean to use v1/embeddings?" in reply.error["message"]


async def test_what_is_no_reranker_is_refused_at_the_start(serve_reranker, rerankers, tmp_path):
    from tiny_encoders import bert, edit_json, save_encoder

    one_label = {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}
    shutil.copytree(rerankers / "causal", tmp_path / "decoder")
    edit_json(tmp_path / "decoder" / "config.json", **one_label, pad_token_id=None)
    with pytest.raises(ModelLoadError, match=r"config.json: pad_token_id is missing"):
        await serve_reranker(tmp_path / "decoder")
    save_encoder(tmp_path / "labels", bert("BertForSequenceClassification", num_labels=3))
    with pytest.raises(ModelLoadError, match="a reranker has one label, and this has 3"):
        await serve_reranker(tmp_path / "labels")
    shutil.copytree(rerankers / "qwen3", tmp_path / "qwen3")
    (tmp_path / "qwen3" / "chat_template.jinja").write_text(
        "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
    )
    with pytest.raises(ModelLoadError, match="cannot carry a 'query'/'document' pair"):
        await serve_reranker(tmp_path / "qwen3")
    with pytest.raises(ModelLoadError, match="the model's context is 24 tokens"):
        await serve_reranker(rerankers / "bert", max_model_len=25)
    with pytest.raises(ModelLoadError, match="a reranker is computed by one process"):
        await serve_reranker(rerankers / "bert", tensor_parallel_size=2)
