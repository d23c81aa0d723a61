"""The verifier: what it scores, what it refuses to score, and what it does not load."""

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from examples import some
from guarding import guard
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from semantic_cache import VERIFIERS, shipped_verifier
from tiny_verifier import CONFIG, random_weights, write_tiny_second, write_tiny_verifier

from embeddings.encoder.bert_graph import compressible, seven_bits
from embeddings.encoder.model_files import DEFAULT_MODEL, VERIFIER_DIRECTORY, ModelError, locate
from embeddings.encoder.onnx import read_tokenizer
from embeddings.messages import Reason
from embeddings.verify.directories import SECOND
from embeddings.verify.files import read_verifier
from embeddings.verify.recipe import overlap, weighed
from embeddings.verify.verifier import load_verifier
from tools.verifier.export import save_verifier

RESET = "How do I reset my password?"
PHONE = "How do I reset my phone?"
TOKENIZER = locate(DEFAULT_MODEL).directory / "tokenizer.json"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_tiny_verifier(tmp_path_factory.mktemp("verifier"))


@pytest.fixture(scope="module")
def verifier(directory):
    return load_verifier(directory, threads=1)


def test_scores_are_numbers_from_0_to_1_that_tell_pairs_apart(verifier):
    scores = verifier.score([(RESET, PHONE), (RESET, RESET), ("What is this?", "Who was it?")])
    assert all(0 < score < 1 for score in scores)
    assert len(set(scores)) == 3


def test_a_score_does_not_depend_on_order_or_company(verifier):
    long = "Where can I find the invoices of all the orders that I made before last December?"
    (alone,) = verifier.score([(RESET, PHONE)])
    assert verifier.score([(long, RESET), (PHONE, RESET), (long, long)])[1] == alone


@pytest.fixture(scope="module", params=VERIFIERS)
def shipped(request):
    return shipped_verifier(request.param)


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How many seconds are in a day?", "How many minutes are in a day?"),
        ("How much is 2 miles in km?", "How much is 2 miles in cm?"),
        ("What does it cost for a week?", "What does it cost for one month?"),
        ("How do I reset my password?", "How do I change my password?"),
        ("How do I cancel my plan?", "How do I pause my plan?"),
        ("Is Ann nice?", "Is Ann not nice?"),
        ("Why is there no 5G here?", "Why is there 5G here?"),
        ("Why can I log in?", "Why can't I log in?"),
        ("Can I travel with a visa?", "Can I travel without a visa?"),
        ("Should I ever eat meat?", "Should I never eat meat?"),
        ("Is no pet allowed?", "Is a pet allowed?"),
        ("I got the confirmation email.", "I didn't get the confirmation email."),
        ("I said no. Is that rude?", "I said yes. Is that rude?"),
        ("What does the fox say?", "What does the fox not say?"),
        ("Is tea without sugar bitter?", "Is tea with sugar bitter?"),
    ],
)
def test_the_shipped_networks_refuse_what_no_guard_tells_apart(shipped, asked, stored):
    verifier, threshold = shipped
    assert guard(asked, stored) is None
    for pair in ((asked, stored), (stored, asked)):
        (score,) = verifier.score([pair])
        assert weighed(score, 1.0, overlap(*pair)) < threshold


def test_threads_at_the_same_time_have_the_scores_of_one(directory):
    verifier = load_verifier(directory, threads=1)
    alone = verifier.score(PAIRS)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(verifier.score, [PAIRS] * 9)) == [alone] * 9


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=some(150), deadline=None)
def test_any_pair_has_a_score_or_a_reason_and_is_symmetric(verifier, one, other):
    (score,) = verifier.score([(one, other)])
    assert isinstance(score, Reason) or 0 <= score <= 1
    (copied,) = verifier.score([(other, one)])
    assert isinstance(score, Reason) == isinstance(copied, Reason)
    assert isinstance(score, Reason) or copied == score


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty-text"),
        ("\x00\u200b", "empty-text"),
        ("word " * 64, "text-too-long"),
        ("x" * 100_000, "text-too-long"),
        ("How do I greet a \U0001f389?", "unreadable-text"),
        ("How do I [SEP] my password?", "unreadable-text"),
        ("[PAD]", "unreadable-text"),
    ],
)
def test_what_cannot_be_read_has_no_score_and_leaves_the_rest_alone(verifier, text, reason):
    first, second, third = verifier.score([(text, RESET), (RESET, text), (RESET, PHONE)])
    assert first == second == reason
    assert isinstance(third, float)


def test_the_longest_pair_is_scored_and_one_token_more_is_not(verifier):
    one, other = "word " * 30, "other " * (verifier.max_tokens - 33)
    fits, refused = verifier.score([(one, other), (one, other + "word")])
    assert isinstance(fits, float)
    assert refused is Reason.TEXT_TOO_LONG


def test_eight_bits_on_disk_stay_near_the_trained_weights(verifier, directory, monkeypatch):
    pairs = [
        (f"What is the price of {n} apples?", f"How much are {n + 1} pears?") for n in range(30)
    ]
    monkeypatch.setattr("tools.verifier.export._KEPT_WHOLE", tuple(random_weights()))
    whole = load_verifier(write_tiny_verifier(directory / "whole"), threads=1)
    eight, exact = np.array(verifier.score(pairs)), np.array(whole.score(pairs))
    assert not np.array_equal(eight, exact)
    assert np.corrcoef(eight, exact)[0, 1] > 0.95


def test_what_is_large_is_stored_in_eight_bits_and_positions_as_far_as_they_are_read(directory):
    stored = load_file(directory / "model.safetensors")
    assert stored["embeddings.word_embeddings.weight"].dtype == np.int8
    assert stored["encoder.layer.0.output.dense.weight"].dtype == np.int8
    assert stored["classifier.weight"].dtype == np.float32
    assert len(stored["embeddings.position_embeddings.weight"]) == CONFIG["max_tokens"]
    assert (directory / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_what_makes_a_file_compressible_changes_no_product():
    every = np.arange(-127, 128, dtype=np.int8)
    fewer = compressible(every)
    assert np.array_equal(seven_bits(fewer), seven_bits(every))
    assert len(np.unique(fewer)) == len(np.unique(seven_bits(every))) == 127


def test_a_stored_file_is_as_compressible_as_it_can_be_and_has_no_words_that_no_text_has(directory):
    stored = load_file(directory / "model.safetensors")
    weights = stored["encoder.layer.0.output.dense.weight"]
    assert np.array_equal(weights, compressible(weights))
    words = stored["embeddings.word_embeddings.weight"]
    vocabulary = json.loads(TOKENIZER.read_text())["model"]["vocab"]
    for unreached in ("[unused5]", "##。", "..."):
        assert not words[vocabulary[unreached]].any()
    for reached in ("password", "##s", "。", "[CLS]"):
        assert words[vocabulary[reached]].any()


def test_no_character_leads_to_a_shipped_word_without_weights():
    weights = load_file(VERIFIER_DIRECTORY / "model.safetensors")
    words = weights["embeddings.word_embeddings.weight"]
    without = set(np.flatnonzero(~words.any(axis=1)))
    assert len(without) > 1000
    tokenizer = read_tokenizer((VERIFIER_DIRECTORY / "tokenizer.json").read_text())
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    found = tokenizer.encode(" ".join(f"{each}{each} a{each}a" for each in characters)).ids
    assert len(set(found)) > 1000
    assert not without & set(found)


def test_names_with_the_prefix_of_transformers_and_unused_weights_make_no_difference(
    directory, tmp_path
):
    weights = {
        name if name.startswith("classifier") else f"bert.{name}": value
        for name, value in random_weights().items()
    }
    weights["bert.embeddings.position_ids"] = np.arange(512)[None]
    weights["bert.pooler.dense.weight"] = np.zeros((32, 32), np.float32)
    save_verifier(weights, CONFIG, TOKENIZER, tmp_path)
    assert read_verifier(tmp_path).digest == read_verifier(directory).digest


def test_the_digest_follows_every_file(directory, tmp_path):
    write_tiny_verifier(tmp_path)
    digests = {read_verifier(tmp_path).digest}
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text() + " ")
    digests.add(read_verifier(tmp_path).digest)
    (tmp_path / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text() + " ")
    digests.add(read_verifier(tmp_path).digest)
    write_tiny_verifier(tmp_path, seed=1)
    digests.add(read_verifier(tmp_path).digest)
    assert len(digests) == 4


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_that_is_missing_or_broken_is_said_in_one_line(tmp_path, name):
    write_tiny_verifier(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"cannot (read|load)") as refused:
        load_verifier(tmp_path, threads=1)
    assert "\n" not in str(refused.value)
    (tmp_path / name).unlink()
    with pytest.raises(ModelError, match=f"holds no {name}"):
        load_verifier(tmp_path, threads=1)


@pytest.mark.parametrize(
    "changed",
    [
        {"classifier.weight": np.zeros((1, 31), np.float32)},
        {"classifier.bias": np.array([np.nan], np.float32)},
        {"embeddings.word_embeddings.weight": np.zeros((100, 32), np.float32)},
        {"encoder.layer.1.output.dense.weight": np.zeros((32, 63), np.float32)},
        {"encoder.layer.0.attention.self.key.bias": np.zeros(5, np.float32)},
    ],
)
def test_weights_that_do_not_fit_one_another_are_not_loaded(tmp_path, changed):
    with pytest.raises(ModelError, match="verifier"):
        load_verifier(write_tiny_verifier(tmp_path, **changed), threads=1)


@pytest.mark.parametrize(
    "changed", [{"model_type": "t5"}, {"num_hidden_layers": 3}, {"num_attention_heads": 5}]
)
def test_a_configuration_that_does_not_fit_the_weights_is_not_loaded(tmp_path, changed):
    write_tiny_verifier(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(ModelError, match="the verifier"):
        load_verifier(tmp_path, threads=1)


class BrokenSession:
    def __init__(self, logit):
        self.logit = logit

    def run(self, rows):
        if self.logit is None:
            raise RuntimeError("the runtime failed")
        return np.array([self.logit], np.float32)


@pytest.mark.parametrize("logit", [math.nan, math.inf, -math.inf, None])
def test_what_is_no_number_is_no_score(directory, logit):
    verifier = load_verifier(directory, threads=1)
    verifier._first = BrokenSession(logit)
    assert verifier.score([(RESET, PHONE), (RESET, RESET)]) == [Reason.ERROR] * 2


@pytest.mark.parametrize(("logit", "score"), [(1e30, 1.0), (-1e30, 0.0), (0.0, 0.5)])
def test_extreme_logits_are_scores(directory, logit, score):
    verifier = load_verifier(directory, threads=1)
    verifier._first = BrokenSession(logit)
    assert verifier.score([(RESET, PHONE)]) == [pytest.approx(score, abs=1e-6)]


def test_however_sure_it_is_the_cosine_still_counts(directory):
    verifier = load_verifier(directory, threads=1)
    verifier._first = BrokenSession(1e30)
    (score,) = verifier.score([(RESET, PHONE)])
    assert score < 1.0
    assert weighed(score, 0.2, 1.0) < score


def test_more_bytes_than_are_to_be_shipped_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.verifier.export.MOST_BYTES", 1_000_000)
    with pytest.raises(ModelError, match="at most 1000000"):
        write_tiny_verifier(tmp_path)


PAIRS = [(RESET, PHONE), (RESET, "Reset my password, please."), ("What is this?", "Who was it?")]


def logits(scores):
    return [math.log(score / (1 - score)) for score in scores]


def test_a_second_network_reads_what_the_first_does_not_refuse(tmp_path):
    write_tiny_verifier(tmp_path)
    alone = logits(load_verifier(tmp_path, threads=1).score(PAIRS))
    gate = sorted(alone)[1]
    write_tiny_second(tmp_path, gate=gate)
    verifier = load_verifier(tmp_path, threads=1)
    both = logits(verifier.score(PAIRS))
    assert verifier.name == "tiny second"
    refused = alone.index(min(alone))
    assert both[refused] == pytest.approx(alone[refused] - 40, rel=1e-3)
    assert both[refused] < min(logit for place, logit in enumerate(both) if place != refused)


def test_the_first_network_weighs_as_much_as_the_file_says(tmp_path):
    write_tiny_verifier(tmp_path)
    first = logits(load_verifier(tmp_path, threads=1).score(PAIRS))
    write_tiny_second(tmp_path, gate=-1e9)
    second = logits(load_verifier(tmp_path, threads=1).score(PAIRS))
    write_tiny_second(tmp_path, gate=-1e9, first_weighs=0.5)
    both = logits(load_verifier(tmp_path, threads=1).score(PAIRS))
    expected = [b + a / 2 for a, b in zip(first, second, strict=True)]
    assert both == pytest.approx(expected, abs=1e-3)


def test_each_pair_of_networks_has_its_digest(tmp_path):
    write_tiny_verifier(tmp_path)
    digests = {read_verifier(tmp_path).digest}
    for gate in (-1.0, -2.0):
        write_tiny_second(tmp_path, gate=gate)
        digests.add(read_verifier(tmp_path).digest)
        assert read_verifier(tmp_path, alone=True).digest in digests
    assert len(digests) == 3


def test_a_second_network_of_another_verifier_is_not_used(tmp_path):
    write_tiny_second(write_tiny_verifier(tmp_path / "a"), gate=-1.0)
    write_tiny_verifier(tmp_path / "b", seed=4)
    (tmp_path / "a" / SECOND).rename(tmp_path / "b" / SECOND)
    files = read_verifier(tmp_path / "b")
    assert files.digest == read_verifier(tmp_path / "b", alone=True).digest
    assert "was made for another verifier" in files.fault


def without(name):
    def change(second):
        config = json.loads((second / "config.json").read_text())
        del config[name]
        (second / "config.json").write_text(json.dumps(config))

    return change


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (without("gate"), "gate"),
        (without("first_weighs"), "first_weighs"),
        (without("first"), "another verifier"),
        (without("name"), "name"),
        (lambda second: (second / "words.safetensors").unlink(), "no words.safetensors"),
        (lambda second: (second / "model.safetensors").write_bytes(b"short"), "cannot read"),
        (lambda second: (second / "config.json").write_text("{"), "cannot read"),
        (lambda second: shutil.rmtree(second) or second.mkdir(), "holds no config.json"),
    ],
)
def test_the_first_network_serves_alone_if_the_second_is_damaged(tmp_path, damage, fault):
    damage(write_tiny_second(write_tiny_verifier(tmp_path), gate=-1.0))
    verifier = load_verifier(tmp_path, threads=1)
    alone = load_verifier(tmp_path, threads=1, alone=True)
    assert fault in verifier.fault
    assert alone.fault == ""
    assert verifier.digest == alone.digest
    assert verifier.score(PAIRS) == alone.score(PAIRS)


def test_the_first_network_serves_alone_if_the_second_scores_no_pair(tmp_path):
    second = write_tiny_second(write_tiny_verifier(tmp_path), gate=-1e9)
    weights = load_file(second / "model.safetensors")
    weights["classifier.bias"][:] = math.nan
    save_file(weights, second / "model.safetensors")
    verifier = load_verifier(tmp_path, threads=1)
    assert "the second network is not used" in verifier.fault
    assert verifier.digest == load_verifier(tmp_path, threads=1, alone=True).digest
