"""Words after a text: one string with it, as the authors of prompts tokenise them, or apart from it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from embrew.corpus import encode_corpus, read_vectors
from embrew.encoder import Encoder
from embrew.export import exporting
from embrew.recipe import Recipe, build
from embrew.settings.encoder import Pooling
from embrew.storage.base_model import ASSETS
from embrew.text.template import Template
from embrew.text.texts import as_sentence
from embrew.text.tokens import Segment
from tests.conftest import SENTENCES, by_default
from tests.hard_texts import HARD_TEXTS, REAL_TOKENIZERS, real_tokenizer_folder

PROMPTS = ("prompteol", "metaeol", "echo")
PROMPT = 'This sentence : "{text}" means in one word:"'
ECHO = "Rewrite the following sentence: {text}\nThe rewritten sentence: {echo}"
MEMORY = [300, 301]


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(ASSETS["nano"] if name == "nano" else real_tokenizer_folder(name))


def part(row: Any, segment: Segment) -> list[int]:
    return [i for i, s in zip(row.ids, row.segments, strict=True) if s == segment]


@pytest.mark.parametrize("name", by_default(["nano", "mistral"], ["nano", *REAL_TOKENIZERS]))
@pytest.mark.parametrize("recipe", PROMPTS)
def test_a_prompt_is_the_authors_string_tokenised_once(name, recipe):
    """Token by token what the Hugging Face tokenizer makes of the prompt with the text written into it."""
    tokenizer, config = tokenizer_of(name), Recipe.load(f"baselines/{recipe}").encoder
    other = 0
    for pattern in config.templates:
        template = Template(pattern, tokenizer, preparation=config.preparation)
        for text, row in zip(HARD_TEXTS, template.rows(HARD_TEXTS), strict=True):
            said = as_sentence(text) if config.preparation == "sentence" else text
            string = pattern.replace("{text}", said, 1).replace("{echo}", said, 1)
            if "{text}" in text:  # a text that holds names of fields
                string = pattern.partition("{text}")[0] + said + pattern.partition("{text}")[2].replace("{echo}", said)
            wanted = tokenizer(string, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
            other += row.ids != template.bos_ids + wanted
    assert other == 0, f"{other} of {len(HARD_TEXTS) * len(config.templates)} prompts have other tokens"


@pytest.mark.parametrize("name", by_default(["nano", "mistral"], ["nano", *REAL_TOKENIZERS]))
@pytest.mark.parametrize("pattern", [PROMPT, 'say "{text}". Again: "{echo}"!', ECHO])
def test_a_truncated_text_loses_its_end_and_nothing_else(name, pattern):
    tokenizer = tokenizer_of(name)
    template = Template(pattern, tokenizer)
    whole = template.rows(HARD_TEXTS)
    limit, truncated = 60, 0
    for text, row, before in zip(HARD_TEXTS, template.rows(HARD_TEXTS, max_length=limit), whole, strict=True):
        assert len(row.ids) <= limit
        if len(before.ids) <= limit:
            assert row == before, "what fits is one string"
            continue
        truncated += 1
        kept, suffix = part(row, Segment.TEXT), template.suffix_ids
        assert kept == part(before, Segment.TEXT)[: len(kept)] and len(kept) > 5, text
        assert row.ids[len(row.ids) - len(suffix) :] == suffix
        if "{echo}" in pattern:
            assert len(part(row, Segment.ECHO)) == len(kept)
            assert part(row, Segment.ECHO) == part(before, Segment.ECHO)[: len(kept)]
            assert len(row.ids) >= limit - 1
        else:
            assert len(row.ids) == limit
    assert truncated >= 3


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        (PROMPT, "joined"),
        (ECHO, "joined"),
        ("{instruction}{text}", "separate"),
        ("{text}\n{memory}", "separate"),
        ('"{text}{instruction}', "separate"),
        ("{text}{eos}", "separate"),
        ("{instruction}{text}\n", "separate"),
    ],
)
def test_what_is_joined_by_default(pattern, how, tokenizer):
    assert Template(pattern, tokenizer, MEMORY if "memory" in pattern else []).words_after == how


def prompted(make_encoder, **settings: Any) -> Encoder:
    settings = {"template": PROMPT, "pooling": "last", **settings}
    return make_encoder(memory_tokens=0, attention="causal", **settings)


def test_a_saved_encoder_says_how(model_folder, tmp_path):
    pattern = "say {text}e again"  # a text that ends with `th` shares a token with it
    made = {"pooling": "last", "max_length": 256}
    joined = Encoder.from_pretrained(model_folder("llama"), template=pattern, **made)
    separate = Encoder.from_pretrained(model_folder("llama"), template=pattern, words_after="separate", **made)
    texts = ["read th", *SENTENCES, *HARD_TEXTS[:12]]
    assert np.abs(joined.encode(texts) - separate.encode(texts)).max() > 0.01
    joined.save_pretrained(tmp_path / "new")
    separate.save_pretrained(tmp_path / "apart")
    for encoder, name in ((joined, "new"), (separate, "apart")):
        assert json.loads((tmp_path / name / "embrew.json").read_text())["words_after"] == encoder.template.words_after
        opened = Encoder.from_pretrained(tmp_path / name)
        assert opened.template.words_after == encoder.template.words_after
        np.testing.assert_allclose(opened.encode(texts), encoder.encode(texts), atol=1e-6)
        corpus = tmp_path / f"{name}.jsonl"
        corpus.write_text("".join(json.dumps({"_id": str(i), "text": text}) + "\n" for i, text in enumerate(texts)))
        encode_corpus(opened, corpus, tmp_path / f"{name}-vectors")
        written = np.concatenate([codes for _, codes in read_vectors(tmp_path / f"{name}-vectors")])
        np.testing.assert_allclose(written, encoder.encode_document(texts), atol=1e-5)
    assert joined.weights_hash() != separate.weights_hash()


def test_an_encoder_whose_words_are_joined_is_not_exported(make_encoder, tmp_path):
    with pytest.raises(ValueError, match="words_after: separate can be exported"):
        exporting.export_encoder(prompted(make_encoder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_recipe_says_what_its_template_does_by_default(caplog):
    joined = Recipe.load("baselines/contrastive-last-nano", ['encoder.template="{text}; so"', "encoder.prompts={}"])
    separate = Recipe.load(
        "baselines/contrastive-last-nano",
        ['encoder.template="{text}; so"', "encoder.prompts={}", "encoder.words_after=separate"],
    )
    assert joined.resolved()["encoder"]["words_after"] == "joined"
    assert joined.stage_hash(0) != separate.stage_hash(0)
    assert Recipe.load("baselines/llama2vec-nano").resolved()["encoder"]["words_after"] is None
    build.encoder(joined)
    assert "set encoder.words_after=separate before training" in caplog.text
    caplog.clear()
    encoder = build.encoder(separate)
    assert not caplog.text
    assert encoder.template.words_after == "separate"
    with pytest.raises(ValueError, match="encoder.words_after='joined', there 'separate'"):
        build.check_same_encoder(joined, encoder, "a folder")


def test_pooling_over_the_text_reads_the_token_at_its_edge(make_encoder):
    """Where a token holds the text's full stop and a quote, it is one of the tokens that the mean is taken over."""
    encoder = prompted(make_encoder, template='"{text}" is said', pooling=Pooling("mean", "text"))
    (row,) = encoder.template.rows(["in the river"])
    states = encoder.hidden_states(encoder.tokenize(["in the river"]))[0]
    at = [i for i, s in enumerate(row.segments) if s == Segment.TEXT]
    wanted = states[at].mean(0)
    got = encoder.encode("in the river")
    np.testing.assert_allclose(got, (wanted / wanted.norm()).detach().numpy(), atol=1e-5)
