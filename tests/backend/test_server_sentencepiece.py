"""Completions of a model with a SentencePiece tokenizer, whose decoder strips a first space.

Tokens are forced by their bias, so the expected text is what the tokens spell.
"""

import orjson
import pytest
import tokenizers
import torch
import transformers
from fake_models import at_once, nothing_to_close

from backend.engine.loading import load_engine
from backend.server.app import build_application
from backend.server.served_model import LoadedModel, ServedModel

pytest_plugins = ["running_backend"]

PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES += ["▁", "▁▁", "▁▁▁▁", "▁Hello", "▁world", "Hello", "x", ":", "\n", "▁x"]
NUMBER = {piece: number for number, piece in enumerate(PIECES)}
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
DECODERS = tokenizers.decoders


def llama_2(raw):
    raw.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    replace = DECODERS.Replace("▁", " ")
    raw.decoder = DECODERS.Sequence(
        [replace, DECODERS.ByteFallback(), DECODERS.Fuse(), DECODERS.Strip(" ", 1, 0)]
    )


def metaspace(raw):
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    raw.decoder = DECODERS.Sequence(
        [DECODERS.ByteFallback(), DECODERS.Metaspace(prepend_scheme="first"), DECODERS.Fuse()]
    )


@pytest.fixture(scope="module", params=[llama_2, metaspace])
def loaded(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("sentencepiece")
    merges = [("▁", "▁"), ("▁▁", "▁▁"), ("▁", "x"), ("▁", "Hello")]
    raw = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=NUMBER, merges=merges, byte_fallback=True, unk_token="<unk>")
    )
    request.param(raw)
    raw.add_special_tokens(["<s>", "</s>"])
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(PIECES),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=64,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    raw.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_bytes(orjson.dumps(settings))
    engine, tokenizer = load_engine(str(directory), device="cpu")
    engine.start()
    yield LoadedModel(engine, tokenizer, nothing_to_close)
    engine.stop()


@pytest.fixture
async def server(serve_application, loaded):
    app = build_application(ServedModel("tiny", at_once(loaded)))
    server = await serve_application(app, loaded.generator)
    await server.model.load()
    return server


def forced(piece, count=1):
    return {"logit_bias": {str(NUMBER[piece]): 100}, "max_tokens": count, "temperature": 0}


TOKENS = (1, NUMBER["▁▁▁▁"], NUMBER["x"])


PROMPTS = ["Hello", "def x:\n", "日本語日本語", "   x", TOKENS, TOKENS[1:]]
"""The last eight tokens of the third begin within a character."""


@pytest.mark.parametrize(
    "prompt", ["Hello", "def x:\n", "日本語日本語", "   x", TOKENS, TOKENS[1:]]
)
@pytest.mark.parametrize("piece", ["▁world", "▁▁▁▁", "x"])
async def test_a_completion_keeps_the_space_of_its_first_token(server, loaded, prompt, piece):
    text = prompt
    if not isinstance(prompt, str):
        text = loaded.encoder.decode(prompt, skip_special_tokens=False)
    said = piece.replace("▁", " ")
    for echo in (False, True):
        fields = {"echo": echo, "logprobs": 0, **forced(piece, 2)}
        (choice,) = (await server.complete(prompt, **fields)).json["choices"]
        whole = text + said * 2 if echo else said * 2
        assert choice["text"] == whole
        events = (await server.complete(prompt, stream=True, **fields)).events
        assert "".join(event["choices"][0]["text"] for event in events) == whole
        logprobs = choice["logprobs"]
        assert logprobs["text_offset"][-2:] == [len(whole) - 2 * len(said), len(whole) - len(said)]
        if echo:
            pieces = zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
            assert all(whole.startswith(each, at) for each, at in pieces if each in "Hellox:")
            assert logprobs["text_offset"] == sorted(logprobs["text_offset"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", ["Hello", "日本語日本語", "x:\n"])
async def test_a_message_that_is_continued_keeps_the_space(server, content, stream):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    body = {"model": "tiny", "messages": messages, "stream": stream, **forced("▁world")}
    reply = await server.post("/v1/chat/completions", body | {"continue_final_message": True})
    if stream:
        deltas = [event["choices"][0]["delta"] for event in reply.events]
        assert "".join(delta.get("content") or "" for delta in deltas) == " world"
    else:
        assert reply.json["choices"][0]["message"]["content"] == " world"


@pytest.mark.parametrize(("given", "number"), [(None, 2), (True, 2), (False, 1)])
async def test_a_prompt_that_the_client_templated_gets_no_second_beginning(server, given, number):
    fields = {"echo": True, "logprobs": 0, "add_special_tokens": given, **forced("x")}
    (choice,) = (await server.complete("<s>x", **fields)).json["choices"]
    assert choice["logprobs"]["tokens"].count("<s>") == number


async def test_an_answer_of_its_own_begins_without_the_space(server):
    assert (await server.chat("x", **forced("▁world"))).json["choices"][0]["message"][
        "content"
    ] == "world"
