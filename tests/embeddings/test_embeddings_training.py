import json
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_verifier import CONFIG, HIDDEN, INNER, random_weights
from tokenizers import Tokenizer

import tools.verifier
from embeddings.encoder.bert_graph import bert_shape, cross_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL, locate
from embeddings.encoder.onnx_session import OnnxSession
from tools.verifier.__main__ import main
from tools.verifier.fitting import Reader, collated, fit, joined
from tools.verifier.groups import Group, GroupError, read_groups
from tools.verifier.mixture import Labelled, careless, mixture, neighbours
from tools.verifier.network import PairNetwork

SHIPPED = Path(tools.verifier.__file__).parent
GROUPS = [
    Group(("How do I open it?", "open it how", "ways to open"), ("How do I close it?", "Why?")),
    Group(("What is a fox?", "define fox"), ("What is a box?", "Who is Fox?", "fox or box?")),
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The weights of a tiny BERT, with the tokenizer of MiniLM beside them."""
    directory = tmp_path_factory.mktemp("encoder")
    config = {
        **CONFIG,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "max_position_embeddings": 512,
        "vocab_size": 30522,
        "hidden_dropout_prob": 0.0,
    }
    (directory / "config.json").write_text(json.dumps(config))
    weights = {name: torch.tensor(value) for name, value in random_weights().items()}
    save_file(weights, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def reader():
    tokenizer = Tokenizer.from_file(str(locate(DEFAULT_MODEL).directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return Reader(tokenizer, 64)


def test_groups_are_read_in_order(tmp_path):
    (tmp_path / "b.txt").write_text("Q?\n= q\n! r\n")
    (tmp_path / "a.txt").write_text("\nOne?\n= 1?\n! Two?\n\n\nThree?\n! Four?\n= 3?\n")
    assert read_groups(tmp_path) == [
        Group(("One?", "1?"), ("Two?",)),
        Group(("Three?", "3?"), ("Four?",)),
        Group(("Q?", "q"), ("r",)),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("= q\n! r\n", "a.txt:1: a group begins with its seed"),
        ("Q?\n= q\nr\n", "a.txt:3: expected '= ' or '! ' and a question"),
        ("Q?\n= \n! r\n", "a.txt:2: expected"),
        ("Q?\n\nR?\n= r\n", "a.txt:1: expected at least one"),
        ("Q?\n= r\n", "a.txt:1: expected at least one"),
        ("Q?\n= q?\n! r\n", "a.txt:1: the same question twice"),
        ("", "no groups"),
    ],
)
def test_a_line_that_is_none_of_a_group_is_named(tmp_path, text, complaint):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(GroupError, match=complaint.replace("?", r"\?")):
        read_groups(tmp_path)


def test_what_ships_can_be_read_and_nothing_that_is_held_out_is_trained_on():
    groups = read_groups(SHIPPED / "groups")
    folders = sorted((SHIPPED / "calibration").iterdir())
    log = [group for folder in folders for group in read_groups(folder)]
    development = read_groups(SHIPPED / "development")
    assert len(groups) > 2000
    assert len(log) > 2000
    assert len(development) > 700
    trained, held, seen = (
        {text.casefold() for group in some for text in (*group.same, *group.misses)}
        for some in (groups, log, development)
    )
    assert not trained & held
    assert not trained & seen


def test_the_mixture_is_even_and_the_same_for_a_seed():
    drawn = list(islice(mixture(GROUPS, [], Random(3)), 2000))
    assert drawn == list(islice(mixture(GROUPS, [], Random(3)), 2000))
    written = [pair for pair in drawn if not pair.made]
    assert 0.4 < len(written) / len(drawn) < 0.6
    assert 0.35 < sum(pair.same for pair in written) / len(written) < 0.55


def test_a_group_never_says_of_its_miss_that_it_is_the_same():
    by_text = {careless(text, Random(0)).casefold() for text in GROUPS[0].misses}
    for pair in islice(mixture(GROUPS, [], Random(5)), 500):
        if not pair.made and by_text & {pair.a.casefold(), pair.b.casefold()}:
            assert not pair.same


def test_neighbours_are_of_other_groups_and_neither_too_near_nor_too_far():
    def encode(texts):
        angles = {"a1": 0, "a2": 5, "b1": 10, "b2": 40, "c1": 180, "c2": 170}
        radians = np.radians([angles[text] for text in texts])
        return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)

    groups = [Group((f"{name}1", f"{name}2"), ("-",)) for name in "abc"]
    found = {(pair.a, pair.b) for pair in neighbours(groups, encode)}
    assert ("a1", "b2") in found
    assert ("a1", "b1") not in found  # a cosine of 0.98: perhaps the same question
    assert not any(a[0] == b[0] or "c" in (a[0], b[0]) for a, b in found)


def test_the_trained_network_is_the_one_that_is_served(encoder, reader):
    torch.manual_seed(1)
    network = PairNetwork(encoder, layers=2, inner=48).eval()
    pairs = [("How do I open it?", "open it"), ("Why is the sky blue?", "a b c d e f g h i j k")]
    features = [reader.features(a, b) for a, b in pairs]
    with torch.inference_mode():
        expected = network(*collated(features)).numpy()
    weights = {
        name.removeprefix("bert."): value.numpy() for name, value in network.state_dict().items()
    }
    session = OnnxSession(cross_encoder(bert_shape(network.config), weights), threads=1)
    np.testing.assert_allclose(session.run(features), expected, atol=1e-4)


def test_the_inner_units_that_say_most_are_kept(encoder):
    whole = PairNetwork(encoder, layers=1, inner=INNER)
    slim = PairNetwork(encoder, layers=1, inner=8)
    into = "encoder.layer.0.intermediate.dense.weight"
    kept = {tuple(row) for row in dict(slim.bert.named_parameters())[into].tolist()}
    rows = dict(whole.bert.named_parameters())[into]
    out = dict(whole.bert.named_parameters())["encoder.layer.0.output.dense.weight"]
    largest = (rows.norm(dim=1) * out.norm(dim=0)).topk(8).indices
    assert kept == {tuple(row) for row in rows[largest].tolist()}


def test_training_learns_what_the_pairs_say(encoder, reader):
    """One process; the words' own vectors stay as they are."""

    def pairs():
        rng = Random(1)
        words = ["red", "blue", "green", "black", "white", "brown"]
        while True:
            a, b = rng.sample(words, 2)
            yield Labelled(f"a {a} house", f"the {a} house", same=True)
            yield Labelled(f"a {a} house", f"the {b} house", same=False)

    joined(0, 1, 0)
    try:
        torch.manual_seed(0)
        network = PairNetwork(encoder, layers=1, inner=32)
        words = network.bert.embeddings.word_embeddings.weight.clone()
        said = []
        fit(network, pairs(), reader, 0.1, report=said.append)
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(words, network.bert.embeddings.word_embeddings.weight)
    same = collated([reader.features("a black house", "the black house")])
    other = collated([reader.features("a black house", "the green house")])
    with torch.inference_mode():
        assert network.eval()(*same) > network(*other)


def test_a_folder_without_groups_is_said(tmp_path, capsys):
    assert main(["--groups", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "no groups" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
