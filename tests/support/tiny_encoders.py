"""A pytest plugin: tiny random encoders and rerankers, as their makers publish them."""

import json

import pytest
import tokenizers
import torch
import transformers

WORDS = [*"abcdefghij", "query:", "document:", "yes", "no", ".", "system", "assistant"]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
_SHAPE = {
    "vocab_size": len(_SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
PAIR_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].replace('query', 'query:')"
    ".replace('document', 'document:') + ' ' + message['content'] + ' . ' }}{% endfor %}assistant ."
)
_CONTEXT = 24


def save_tokenizer(directory, *, typed=True, template=None, limit=_CONTEXT):
    """Write a tokenizer of words; ``typed`` tells the two texts of a pair apart."""
    vocabulary = {word: index for index, word in enumerate([*_SPECIAL, *WORDS])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if template is None:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1" if typed else "[CLS] $A [SEP] [SEP] $B [SEP]",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    names = ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"]
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=limit,
        model_input_names=names,
        chat_template=template,
    ).save_pretrained(directory)


def save_encoder(directory, model, **options):
    """Write a model of transformers with its tokenizer."""
    model.save_pretrained(directory)
    save_tokenizer(directory, **options)


def bert(kind="BertModel", **keys):
    torch.manual_seed(5)
    config = transformers.BertConfig(**_SHAPE, max_position_embeddings=_CONTEXT, **keys)
    return getattr(transformers, kind)(config)


@pytest.fixture(scope="session")
def rerankers(tmp_path_factory):
    """Directories: logits by ``bert``, shares by ``roberta``, yes against no by ``qwen3``."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    root = tmp_path_factory.mktemp("rerankers")
    plain = {"activation_fn": "torch.nn.modules.linear.Identity"}
    made = bert("BertForSequenceClassification", num_labels=1, sentence_transformers=plain)
    save_encoder(root / "bert", made)
    torch.manual_seed(6)
    config = transformers.XLMRobertaConfig(**_SHAPE, num_labels=1, max_position_embeddings=25)
    made = transformers.XLMRobertaForSequenceClassification(config)
    save_encoder(root / "roberta", made, typed=False, limit=1000)
    torch.manual_seed(7)
    config = transformers.Qwen3Config(
        **_SHAPE, num_key_value_heads=2, head_dim=8, max_position_embeddings=40
    )
    save_encoder(
        root / "causal",
        transformers.Qwen3ForCausalLM(config),
        typed=False,
        template=PAIR_TEMPLATE,
        limit=40,
    )
    transformer = Transformer(str(root / "causal"), transformer_task="text-generation")
    yes, no = map(transformer.tokenizer.convert_tokens_to_ids, ("yes", "no"))
    CrossEncoder(
        modules=[transformer, LogitScore(yes, no)],
        prompts={"ask": "i j ."},
        default_prompt_name="ask",
        device="cpu",
    ).save_pretrained(str(root / "qwen3"))
    return root


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def save_embedder(directory, pooling, *, dense=False, **options):
    """Write an embedding model as sentence-transformers does, with prompts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

    save_encoder(directory / "bert", bert(hidden_act="gelu"))
    edit_json(directory / "bert" / "config.json", is_matryoshka=True)
    modules = [Transformer(str(directory / "bert")), Pooling(32, pooling_mode=pooling)]
    if dense:
        torch.manual_seed(8)
        modules.append(Dense(32, 12))
    prompts = {"query": "query:", "document": "document: ", "topic": "i j "}
    model = SentenceTransformer(modules=modules, prompts=prompts, device="cpu", **options)
    model.save_pretrained(str(directory / "model"))
    return directory / "model"
