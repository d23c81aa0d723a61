"""The ONNX graphs against transformers, which define what BERT computes."""

import math

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from embeddings.encoder.bert_graph import cross_encoder, quantised, sentence_encoder
from embeddings.encoder.onnx import OnnxSession
from embeddings.encoder.plain_bert import bert_shape

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
    "vocab_size": 97,
    "type_vocab_size": 4,
    "layer_norm_eps": 1e-12,
}


class Reference(torch.nn.Module):
    """BERT with a head over all tokens, for four token types."""

    def __init__(self, seed=5):
        super().__init__()
        torch.manual_seed(seed)
        self.bert = BertModel(BertConfig(**CONFIG, initializer_range=0.3), add_pooling_layer=False)
        self.classifier = torch.nn.Linear(CONFIG["hidden_size"], 1)
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name:
                torch.nn.init.normal_(parameter, mean=float("LayerNorm.weight" in name), std=0.3)
        self.eval()

    @torch.inference_mode()
    def tokens(self, feed):
        ids, types, mask = (torch.tensor(feed[name].astype(np.int64)) for name in feed)
        return self.bert(ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    @torch.inference_mode()
    def logits(self, feed):
        differs = (self.tokens(feed) @ self.classifier.weight.T).squeeze(-1)
        counts = torch.tensor(feed["mask"]) == 1
        rows = [row[kept] for row, kept in zip(differs, counts, strict=True)]
        total = torch.stack([row.logsumexp(0) - math.log(len(row)) for row in rows])
        return (self.classifier.bias - total).numpy()

    def weights(self):
        state = self.state_dict()
        return {name.removeprefix("bert."): value.numpy() for name, value in state.items()}


def run(graph, feed):
    lengths = feed["mask"].sum(1)
    rows = [
        (ids[:length], types[:length])
        for ids, types, length in zip(feed["ids"], feed["types"], lengths, strict=True)
    ]
    return OnnxSession(graph, threads=1).run(rows)


def batch(*lengths, seed=1):
    random = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths))
    mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.int32)
    return {
        "ids": random.integers(0, CONFIG["vocab_size"], shape).astype(np.int32) * mask,
        "types": random.integers(0, 4, shape).astype(np.int32) * mask,
        "mask": mask,
    }


@pytest.fixture(scope="module")
def reference():
    return Reference()


def test_logits_equal_those_of_transformers(reference):
    model = cross_encoder(bert_shape(CONFIG), reference.weights())
    for feed in (batch(1), batch(40), batch(7, 19, 3), batch(2, 2)):
        expected = reference.logits(feed)
        assert expected.std() > 0.01 or len(expected) == 1
        np.testing.assert_allclose(run(model, feed), expected, atol=1e-4)


def test_every_token_type_counts(reference):
    model = cross_encoder(bert_shape(CONFIG), reference.weights())
    feed = batch(9)
    logits = [
        run(model, {**feed, "types": np.full_like(feed["ids"], kind)})[0] for kind in range(4)
    ]
    assert len(np.unique(np.round(logits, 4))) == 4


def test_vectors_are_the_unit_mean_of_the_tokens(reference):
    model = sentence_encoder(bert_shape(CONFIG), reference.weights())
    feed = batch(5, 1, 17)
    mask = torch.tensor(feed["mask"])[:, :, None]
    mean = (reference.tokens(feed) * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(mean, dim=-1).numpy()
    np.testing.assert_allclose(run(model, feed), expected, atol=1e-5)


def test_one_layer_is_enough(reference):
    shape = bert_shape({**CONFIG, "num_hidden_layers": 1})
    assert run(cross_encoder(shape, reference.weights()), batch(5, 6)).shape == (2,)


def test_heads_may_be_fewer_than_the_hidden_size_holds(reference):
    """Pruned: two of four heads are left, each of its old width."""
    weights = dict(reference.weights())
    for name in [name for name in weights if ".attention.self." in name]:
        weights[name] = weights[name][:24]
    for name in [name for name in weights if name.endswith("attention.output.dense.weight")]:
        weights[name] = weights[name][:, :24]
    kept = dict(reference.weights())
    for name in [name for name in kept if name.endswith("attention.output.dense.weight")]:
        kept[name] = np.where(np.arange(48) < 24, kept[name], 0).astype(np.float32)
    pruned = cross_encoder(bert_shape({**CONFIG, "num_attention_heads": 2}), weights)
    whole = cross_encoder(bert_shape(CONFIG), kept)
    np.testing.assert_allclose(run(pruned, batch(8, 3)), run(whole, batch(8, 3)), atol=1e-4)


def test_eight_bit_weights_stay_near_the_reference(reference):
    floats, eight = dict(reference.weights()), dict(reference.weights())
    for name in [name for name, weight in floats.items() if weight.ndim == 2]:
        eight[name] = quantised(floats[name])
        floats[name] = eight[name].floats()
    shape = bert_shape(CONFIG)
    feeds = [batch(12, seed=seed) for seed in range(40)]
    exact = np.array([run(cross_encoder(shape, floats), feed)[0] for feed in feeds])
    found = np.array([run(cross_encoder(shape, eight), feed)[0] for feed in feeds])
    assert not np.array_equal(exact, found)
    assert np.corrcoef(exact, found)[0, 1] > 0.99


def test_a_row_of_zeros_keeps_its_zeros():
    weight = np.array([[0, 0], [-2.54, 1.28]], dtype=np.float32)
    np.testing.assert_allclose(quantised(weight).floats(), weight, atol=1e-6)


def test_a_weight_that_is_missing_is_named(reference):
    weights = dict(reference.weights())
    del weights["encoder.layer.1.output.dense.weight"]
    with pytest.raises(KeyError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        cross_encoder(bert_shape(CONFIG), weights)


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "mpnet"},
        {"model_type": None},
        {"hidden_act": "gelu_new"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"num_hidden_layers": 0},
        {"num_attention_heads": None},
        {"layer_norm_eps": -1.0},
    ],
)
def test_what_is_no_plain_bert_is_refused(changed):
    with pytest.raises(ValueError, match=r"expected|configuration"):
        bert_shape({**CONFIG, **changed})
