import json
import re
import threading
import time

import pytest
import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from backend.models.config import ModelLoadError
from backend.scheduler.stopping import ByteLevelDetokenizer
from backend.settings import template_file
from backend.tokenizer.chat_template import ChatTemplateError
from backend.tokenizer.tokenizer import Tokenizer

CHATML = (
    "{%- for message in messages %}\n"
    "    {%- if message.role not in ('system', 'user', 'assistant') %}\n"
    "        {{- raise_exception('unknown role ' ~ message.role) }}\n"
    "    {%- endif %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' }}\n"
    "    {%- generation %}{{ message.content }}{% endgeneration %}\n"
    "    {{- eos_token + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if tools %}{{ tools | tojson }}{% endif %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}\n"
)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße <b>& 東京</b> 🙂"},
]


@pytest.fixture
def directory(tmp_path):
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {character: index for index, character in enumerate(sorted(alphabet))}
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    raw.add_special_tokens(["<s>", "<|im_start|>", "<|im_end|>"])
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    raw.enable_truncation(4)
    raw.enable_padding(length=4)
    raw.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", config())
    return tmp_path


def config(**changes):
    return {"eos_token": "<|im_end|>", "bos_token": {"content": "<s>"}, "chat_template": CHATML} | (
        changes
    )


def write(directory, name, value):
    (directory / name).write_text(json.dumps(value))


def test_text_survives_and_is_neither_cut_nor_padded(directory):
    tokenizer = Tokenizer.load(directory)
    for text in ("", "a", "Grüße, 東京 🙂 " * 20):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert isinstance(tokenizer.detokenizer(), ByteLevelDetokenizer)


def test_special_tokens_are_added_on_request_and_recognised_in_text(directory):
    tokenizer = Tokenizer.load(directory)
    plain = tokenizer.encode("hi")
    assert tokenizer.encode("hi", add_special_tokens=True) == [256, *plain]
    assert tokenizer.encode("<|im_start|>hi<|im_end|>") == [257, *plain, 258]
    assert tokenizer.decode([257, *plain, 258]) == "hi"
    assert tokenizer.vocab_size == 259


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_the_chat_template_renders_as_transformers_does(directory, add_generation_prompt, tools):
    tokenizer = Tokenizer.load(directory)
    peer = PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        eos_token="<|im_end|>",
        bos_token="<s>",
        chat_template=CHATML,
    )
    options = {"add_generation_prompt": add_generation_prompt, "tools": tools}
    assert tokenizer.apply_chat_template(MESSAGES, **options) == peer.apply_chat_template(
        MESSAGES, tokenize=False, **options
    )


def test_messages_that_the_template_refuses(directory):
    tokenizer = Tokenizer.load(directory)
    with pytest.raises(ChatTemplateError, match="refuses these messages: unknown role robot"):
        tokenizer.apply_chat_template([{"role": "robot", "content": "x"}])
    write(
        directory, "tokenizer_config.json", config(chat_template="{{ 'x' + messages[0].content }}")
    )
    with pytest.raises(ValueError, match="cannot read these messages"):
        Tokenizer.load(directory).apply_chat_template([{"role": "user", "content": ["x"]}])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
    ],
)
def test_a_hostile_template_reaches_nothing(directory, template):
    write(directory, "tokenizer_config.json", config(chat_template=template))
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(ChatTemplateError):
        Tokenizer.load(directory).apply_chat_template(messages)
    assert messages == [{"role": "user", "content": "x"}]


def test_a_message_that_the_template_leaves_out_cannot_be_continued(directory):
    write(directory, "tokenizer_config.json", config(chat_template="{{ messages[0].content }}"))
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(ChatTemplateError, match="leaves the last message out"):
        Tokenizer.load(directory).apply_chat_template(messages, continue_final_message=True)


@pytest.mark.parametrize(
    "variables",
    [{"namespace": 1}, {"x": [[]]}, {"self": 1}, {"raise_exception": 1}, {"x": {"y": None}}],
)
def test_no_variable_of_a_client_breaks_more_than_its_own_prompt(directory, variables):
    source = "{% set ns = namespace(a=1) %}{{ x.append(2) }}{{ raise_exception(x) }}"
    write(directory, "tokenizer_config.json", config(chat_template=source))
    with pytest.raises(ChatTemplateError):
        Tokenizer.load(directory).apply_chat_template(MESSAGES, variables=variables)


def test_a_variable_that_is_nested_too_deeply_is_the_clients_fault(directory):
    write(directory, "tokenizer_config.json", config(chat_template="{{ deep | tojson }}"))
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ChatTemplateError):
        Tokenizer.load(directory).apply_chat_template(MESSAGES, variables={"deep": deep})


def test_a_model_without_a_template_says_so(directory):
    write(directory, "tokenizer_config.json", {})
    tokenizer = Tokenizer.load(directory)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.apply_chat_template(MESSAGES)


def test_a_template_file_wins_and_named_templates_serve_tools(directory):
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    write(directory, "tokenizer_config.json", config(chat_template=named))
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.apply_chat_template(MESSAGES) == "D"
    assert tokenizer.apply_chat_template(MESSAGES, tools=[{"type": "function"}]) == "T"
    (directory / "chat_template.jinja").write_text("F {{ bos_token }}")
    assert Tokenizer.load(directory).apply_chat_template(MESSAGES) == "F <s>"


def test_a_template_that_is_not_jinja_is_refused_at_load(directory):
    write(directory, "tokenizer_config.json", config(chat_template="{% if %}"))
    with pytest.raises(ModelLoadError, match="chat template, line 1"):
        Tokenizer.load(directory)


def test_a_tokenizer_config_that_is_not_json_is_named(directory):
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: not valid JSON"):
        Tokenizer.load(directory)


def test_end_tokens_come_from_generation_config_then_config_and_the_tokenizer(directory):
    assert Tokenizer.load(directory).eos_token_ids == {258}
    write(directory, "config.json", {"text_config": {"eos_token_id": 6}})
    assert Tokenizer.load(directory).eos_token_ids == {6, 258}
    write(directory, "config.json", {"eos_token_id": 7})
    assert Tokenizer.load(directory).eos_token_ids == {7, 258}
    write(directory, "generation_config.json", {"eos_token_id": [8, 9]})
    assert Tokenizer.load(directory).eos_token_ids == {8, 9, 258}


def test_the_current_date_is_at_hand(directory):
    template = "{{ strftime_now('%Y') | length }}"
    write(directory, "tokenizer_config.json", config(chat_template=template))
    assert Tokenizer.load(directory).apply_chat_template(MESSAGES) == "4"


@pytest.mark.parametrize("work", ["encode", "decode"])
def test_other_threads_run_while_a_long_text_is_worked_on(directory, work):
    tokenizer = Tokenizer.load(directory)
    argument = "a b " * 200_000 if work == "encode" else [1, 2] * 400_000
    begun, ended = threading.Event(), threading.Event()

    def run():
        begun.set()
        getattr(tokenizer, work)(argument)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    turns = 0
    while not ended.is_set():
        time.sleep(0)
        turns += 1
    thread.join()
    # A call that keeps the interpreter to itself leaves a handful, however fast the machine is.
    assert turns > 100


def token(text, **flags):
    return {"content": text, "__type": "AddedToken"} | flags


DECODER = {
    "259": {"content": "<tool>", "special": True},
    "260": {"content": "<note>", "special": False, "normalized": False, "lstrip": True},
    "258": {"content": "<|im_end|>", "special": True},
}


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"added_tokens_decoder": DECODER}},
        {
            "tokenizer_config.json": {"added_tokens_decoder": DECODER, "eos_token": "<note>"},
            # Older files, which the decoder above replaces.
            "special_tokens_map.json": {"eos_token": "<other>"},
            "added_tokens.json": {"<other>": 261},
        },
        {"added_tokens.json": {"<note>": 260, "<tool>": 259}},
        {
            "added_tokens.json": {"<tool>": 259, "<end>": 260},
            "special_tokens_map.json": {"eos_token": {"content": "<end>", "lstrip": False}},
        },
        {"special_tokens_map.json": {"bos_token": "<s>", "eos_token": "<|im_end|>"}},
        {"special_tokens_map.json": {"eos_token": "<end>", "additional_special_tokens": ["<a>"]}},
        {"tokenizer_config.json": {"extra_special_tokens": ["<image>", "<s>", "<audio>"]}},
        {"tokenizer_config.json": {"additional_special_tokens": ["<image>"], "pad_token": "<p>"}},
        {
            "tokenizer_config.json": {
                "extra_special_tokens": {"image_token": "<image>", "audio_token": "<audio>"},
                "video_token": "<video>",
                "boi_token": token("<boi>", lstrip=True),
                "mask_token": token("<mask>", lstrip=True, special=False),
                "bos_token": "A",
            }
        },
        {
            "tokenizer_config.json": {"extra_special_tokens": ["<a>"], "image_token": "<i>"},
            "special_tokens_map.json": {
                "extra_special_tokens": ["<b>", "<a>"],
                "image_token": "<j>",
                "video_token": "<v>",
            },
        },
    ],
)
def test_tokens_beside_tokenizer_json_are_those_of_transformers(directory, files):
    raw = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    raw.no_padding()  # transformers would add its token
    raw.no_truncation()
    raw.save(str(directory / "tokenizer.json"))
    names = {"tokenizer_config.json": {}, **files}
    for name, value in names.items():
        kind = {"tokenizer_class": "PreTrainedTokenizerFast"} if "config" in name else {}
        write(directory, name, value | kind)
    peer = AutoTokenizer.from_pretrained(directory)
    ours = Tokenizer.load(directory)
    words = "<tool> <note> <end> <other> <image> <audio> <video> <boi> <mask> <a> <b> <i> <j> <p> A"
    text = f"{words} <|im_end|><s>"
    ids = peer(text, add_special_tokens=False)["input_ids"]
    assert (ours.encode(text), ours.vocab_size) == (ids, len(peer))
    assert ours.encode("x", add_special_tokens=True) == peer("x")["input_ids"][:2]
    for skip in (True, False):
        said = peer.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special_tokens=skip) == said
    assert ours.eos_token_ids == {peer.eos_token_id} - {None}
    (directory / "chat_template.jinja").write_text("{{ [bos_token, eos_token, image_token] }}")
    peer.chat_template = "{{ [bos_token, eos_token, image_token] }}"
    assert Tokenizer.load(directory).apply_chat_template(MESSAGES) == peer.apply_chat_template(
        MESSAGES, tokenize=False
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "tokenizer_config.json",
            {"extra_special_tokens": "<a>"},
            "extra_special_tokens: expected",
        ),
        ("tokenizer_config.json", {"extra_special_tokens": [1]}, "expected a token, got 1"),
        ("tokenizer_config.json", {"added_tokens_decoder": []}, "added_tokens_decoder: expected"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": "a"}}, "expected the number"),
        ("tokenizer_config.json", {"chat_template": [{"name": "a"}]}, "chat_template: expected"),
        ("added_tokens.json", {"<a>": None}, "expected the number of a token, got None"),
    ],
)
def test_tokens_and_templates_of_a_wrong_shape_are_refused(directory, name, value, words):
    write(directory, name, value)
    if name != "tokenizer_config.json":
        write(directory, "tokenizer_config.json", {})
    with pytest.raises(ModelLoadError, match=f"{re.escape(name)}: {words}"):
        Tokenizer.load(directory)


TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]


def saved(directory, **files):
    (directory / "additional_chat_templates").mkdir()
    for name, text in files.items():
        place = (
            "chat_template.jinja"
            if name == "default"
            else f"additional_chat_templates/{name}.jinja"
        )
        (directory / place).write_text(text)


def test_a_template_may_stand_beside_the_processor(directory):
    write(directory, "tokenizer_config.json", {})
    write(directory, "chat_template.json", {"chat_template": "P"})
    assert Tokenizer.load(directory).apply_chat_template(MESSAGES) == "P"
    write(directory, "tokenizer_config.json", config(chat_template="C"))
    assert Tokenizer.load(directory).apply_chat_template(MESSAGES) == "C"


@pytest.mark.parametrize(
    ("config_template", "files", "plain", "with_tools"),
    [
        ("C", {"default": "D", "tool_use": "T", "rag": "{% broken"}, "D", "T"),
        ("C", {"tool_use": "T"}, "C", "T"),
        ([{"name": "tool_use", "template": "U"}], {"default": "D"}, "D", "D"),
        ([{"name": "tool_use", "template": "U"}, {"name": "rag", "template": "R"}], {}, None, "U"),
        ([{"name": "rag", "template": "R"}], {}, None, None),
    ],
)
def test_the_template_for_tools_is_found_in_every_place(
    directory, config_template, files, plain, with_tools
):
    write(directory, "tokenizer_config.json", config(chat_template=config_template))
    saved(directory, **files)
    tokenizer = Tokenizer.load(directory)
    for tools, expected in ((None, plain), (TOOLS, with_tools)):
        if expected is not None:
            assert tokenizer.apply_chat_template(MESSAGES, tools=tools) == expected
        else:
            with pytest.raises(ChatTemplateError, match=r"no chat template for .* tools, only: "):
                tokenizer.apply_chat_template(MESSAGES, tools=tools)


def test_a_dict_of_templates_is_read_as_transformers_saved_it(directory):
    peer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    peer.chat_template = {"default": "D", "tool_use": "T {{ tools | length }}"}
    peer.save_pretrained(directory)
    tokenizer = Tokenizer.load(directory)
    for tools in (None, TOOLS):
        ours = tokenizer.apply_chat_template(MESSAGES, tools=tools)
        assert ours == peer.apply_chat_template(MESSAGES, tools=tools, tokenize=False)


def test_a_chat_template_of_the_options_goes_before_all_others(directory, tmp_path):
    saved(directory, default="{% broken", tool_use="T")
    path = tmp_path / "mine.jinja"
    path.write_text("mine {{ eos_token }}")
    tokenizer = Tokenizer.load(directory, template_file(str(path)))
    for tools in (None, TOOLS):
        assert tokenizer.apply_chat_template(MESSAGES, tools=tools) == "mine <|im_end|>"
    path.write_text("a\n{{ b }\n")
    with pytest.raises(ModelLoadError, match=rf"^{re.escape(str(path))}: chat template, line 2: "):
        Tokenizer.load(directory, template_file(str(path)))
    with pytest.raises(ValueError, match="cannot read '/nowhere': No such file or directory"):
        template_file("/nowhere")
