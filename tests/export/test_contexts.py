"""Contexts in a stock folder: plain Sentence-Transformers gives the prompted vectors, and contexts do not mix."""

import json
from functools import partial

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from embrew.export.exporting import export_encoder
from embrew.model.context_vectors import initialize_demonstrator
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
from tests.conftest import FAMILIES, SENTENCES, by_default

TEXTS = [*SENTENCES, "", "a", " ends with </s> and <pad>", "\nLine"]
PAIRS = (Demonstration("fox", SENTENCES[0]), Demonstration("sea?", SENTENCES[3]), Demonstration("🦆", "ü"))
FIND, SAME = Context("Find it: ", PAIRS), Context("Instruct: the same\nQuery: ", PAIRS[:1])
TEMPLATE = "{instruction}{text}{eos}"


def made(make_encoder, family="llama", *, settings=None, **options):
    options = {"template": TEMPLATE, "attention": "causal", "pooling": "last", "memory_tokens": 0, **options}
    encoder = make_encoder(family, lora={}, demonstrations=settings or Demonstrations(), **options)
    initialize_demonstrator(encoder)
    encoder.add_context("find", FIND)
    encoder.add_context("same-again", SAME)
    return encoder


def compare(encoder, folder):
    stock = SentenceTransformer(str(folder), device="cpu")
    for name in encoder.contexts:
        found = stock.encode(TEXTS, prompt_name=name, show_progress_bar=False)
        assert np.abs(found - encoder.encode(TEXTS, prompt_name=name)).max() < 1e-5, name
    for name in ("query", "document"):
        found = stock.encode(TEXTS, prompt_name=name, show_progress_bar=False)
        assert np.abs(found - encoder.encode(TEXTS, prompt_name=name)).max() < 1e-5, name
    plain, prompted = (encoder.encode(TEXTS, prompt_name=name) for name in ("query", "find"))
    assert np.abs(plain - prompted).max() > 1e-3
    return stock


@pytest.mark.parametrize("family", by_default(["gemma3"], FAMILIES))
def test_every_family(family, make_encoder, tmp_path):
    encoder = made(make_encoder, family)
    before = encoder.encode(TEXTS, prompt_name="find")
    export_encoder(encoder, tmp_path / "stock", verify="off")
    compare(encoder, tmp_path / "stock")
    assert np.array_equal(encoder.encode(TEXTS, prompt_name="find"), before)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"compress": "none"}, {}),
        pytest.param({"compress": "all"}, {}, marks=pytest.mark.slow),
        pytest.param({"compress": "passage"}, {}, marks=pytest.mark.slow),
        pytest.param({"compress": "query"}, {}, marks=pytest.mark.slow),
        pytest.param({"format": "one_instruction"}, {}, marks=pytest.mark.slow),
        pytest.param({"every": 4}, {}, marks=pytest.mark.slow),
        pytest.param({}, {"pooling": "mean", "attention": "bidirectional"}, marks=pytest.mark.slow),
        pytest.param({}, {"pooling": "weighted_mean"}, marks=pytest.mark.slow),
        ({}, {"memory_tokens": 3, "template": "{instruction}{text}{memory}", "pooling": Pooling("mean", "memory")}),
        pytest.param(
            {}, {"soft_prompt_tokens": 2, "template": "{soft_prompt}{instruction}{text}"}, marks=pytest.mark.slow
        ),
        (
            {},
            {
                "template": 'task: {instruction}"{text}" means:',
                "words_after": "separate",
                "prompts": {"query": "q: "},
                "normalize": False,
            },
        ),
    ],
)
def test_every_layout(settings, options, make_encoder, tmp_path):
    encoder = made(make_encoder, settings=Demonstrations(**settings), **options)
    export_encoder(encoder, tmp_path / "stock", verify="off")
    compare(encoder, tmp_path / "stock")


def test_verified_in_a_fresh_process(make_encoder, tmp_path):
    encoder = made(make_encoder, max_length=96)
    export_encoder(encoder, tmp_path / "stock")
    parity = json.loads((tmp_path / "stock" / "parity.json").read_text())
    assert [case["prompt_name"] for case in parity["cases"]] == ["query", "document", None, "find", "same-again"]
    assert max(len(text["ids"]) for case in parity["cases"] for text in case["texts"]) == 96
    card = (tmp_path / "stock" / "README.md").read_text()
    assert "keep these names out of texts" in card
    assert "`find`: `'Find it: '`, 3 demonstrations" in card
    files = {path.suffix for path in (tmp_path / "stock").rglob("*") if path.is_file()}
    assert files <= {".json", ".safetensors", ".md"}, "no code"


def test_special_tokens_stay_text_and_markers_do_not(make_encoder, tmp_path):
    encoder = made(make_encoder)
    export_encoder(encoder, tmp_path / "stock", verify="off")
    stock = compare(encoder, tmp_path / "stock")
    marker = stock.prompts["find"].partition("<|")[2].partition("|>")[0]
    assert marker.startswith("find.")
    ids = partial(stock.tokenizer, add_special_tokens=False)
    assert len(ids("</s>")["input_ids"]) > 1
    assert len(ids(f"<|{marker}|>")["input_ids"]) == 1, "as the card says"
    assert len(ids("<|find|> <|find.0|>")["input_ids"]) > 6, "nothing else is parsed"


def test_long_texts_leave_room_for_the_context(make_encoder, tmp_path):
    encoder = made(make_encoder, max_length=80)
    long = " ".join(SENTENCES)
    export_encoder(encoder, tmp_path / "stock", verify="off")
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu")
    room = 80 - len(encoder.contexts["find"].row.ids)
    found = stock.encode([long], prompt_name="find", show_progress_bar=False)
    assert np.abs(found - encoder.encode([long], prompt_name="find", max_length=room)).max() < 1e-5


def test_what_cannot_be(make_encoder, tmp_path):
    export = partial(export_encoder, verify="off")
    with pytest.raises(
        ValueError, match="context find takes .* tokens of a text in a stock folder.* export with --max-length"
    ):
        export(made(make_encoder, max_length=40), tmp_path / "stock")
    with pytest.raises(ValueError, match="mean over text leaves out the words"):
        export(made(make_encoder, pooling=Pooling("mean", "text"), template="{instruction}{text}"), tmp_path / "stock")
    encoder = made(make_encoder)
    encoder.add_context("around", Context("<q>{text}<r>", PAIRS))
    with pytest.raises(ValueError, match="where stock prompts cannot be; .* around, document, find, query, same"):
        export(encoder, tmp_path / "stock")
    assert list(tmp_path.iterdir()) == []


def test_an_instruction_around_the_text_is_baked_with_its_context(make_encoder, tmp_path):
    """As bge-en-icl's: what stands behind the text is the same for all texts of a stock folder, so there is one."""
    encoder = made(make_encoder, settings=Demonstrations(compress="none"))
    encoder.add_context("around", Context("<q>{text}<r>", PAIRS))
    export_encoder(encoder, tmp_path / "stock", verify="off", prompt_name="around")
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu")
    assert set(stock.prompts) == {"query", "document", "text", "around"}
    found = stock.encode(TEXTS, prompt_name="around", show_progress_bar=False)
    assert np.abs(found - encoder.encode(TEXTS, prompt_name="around")).max() < 1e-5
