"""EBAE and EBAR: two blocks in one pass are two passes, and the sums of the paper."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from datasets import Dataset
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from embrew.data.documents import split_sentences
from embrew.methods import Llama2Vec
from embrew.text.tokens import Segment, Tokens
from tests.conftest import DIFFERENT, FAMILIES, SENTENCES, by_default
from tests.objectives.cases import ENCODERS, LORA, check_fits, rows_for

SETTINGS = ENCODERS["llama2vec"]


def ready(make_encoder, family="llama", **settings):
    encoder = make_encoder(family, lora=LORA, **{**SETTINGS, **settings})
    objective = Llama2Vec()
    check_fits(objective, encoder)
    return encoder, objective, objective.collate(rows_for(objective), encoder)


@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_a_block_is_what_the_encoder_makes_of_the_text_alone(family, make_encoder):
    """So the embedding that is trained is the one that is used, for queries and for documents."""
    encoder, _objective, batch = ready(make_encoder, family)
    tokens = batch["text"]
    with torch.no_grad():
        slots = encoder.hidden_states(tokens)[tokens.where(Segment.MEMORY)].view(len(tokens), 2, 3, -1)
    texts = [encoder.tokenizer.decode(row[seg == Segment.TEXT]) for row, seg in zip(*tokens_of(tokens), strict=True)]
    for block, name in enumerate(("document", "query")):
        alone = encoder.tokenize(texts, instruction=encoder.prompts[name])
        with torch.no_grad():
            torch.testing.assert_close(slots[:, block], encoder.memory_states(alone), rtol=0, atol=2e-5)


def tokens_of(tokens: Tokens):
    return tokens.input_ids, tokens.segment_ids


def test_against_the_sums_of_the_paper(make_encoder):
    encoder, objective, batch = ready(make_encoder)
    parts = objective(encoder, batch)
    head = encoder.backbone.causal_lm.get_output_embeddings().weight
    language, bags, count = 0.0, [[], []], 0
    for i, row in enumerate(rows_for(objective)):
        sentences = list(row["text"].replace(". ", ".|").split("|"))
        ids = batch["text"].input_ids[i][batch["text"].where(Segment.TEXT)[i]].tolist()
        text = encoder.tokenizer.decode(ids)
        assert row["text"].startswith(text) and any(text == " ".join(sentences[:n]) for n in range(1, 4))
        for block, (name, said) in enumerate((("document", text), ("query", row["text"][len(text) + 1 :]))):
            tokens = encoder.tokenize([ids], instruction=encoder.prompts[name])
            with torch.no_grad():
                states = encoder.hidden_states(tokens)[0]
            largest = (states[tokens.where(Segment.MEMORY)[0]] @ head.T).amax(0).log_softmax(-1)
            bag = [t for t in batch["targets"][i, block].tolist() if t >= 0]
            assert bag == objective._bag(said, encoder) and len(bag) > 3
            bags[block].append(-largest[bag].mean())
        logits = (states @ head.T).log_softmax(-1)
        places = tokens.where(Segment.TEXT)[0].nonzero()[:, 0]
        language -= sum(logits[t - 1, tokens.input_ids[0, t]] for t in places)
        count += len(places)
    assert parts["self"].item() == pytest.approx(torch.stack(bags[0]).mean().item(), rel=1e-4)
    assert parts["next"].item() == pytest.approx(torch.stack(bags[1]).mean().item(), rel=1e-4)
    assert parts["language"].item() == pytest.approx(float(language) / count, rel=1e-4)
    wanted = parts["language"] + 0.1 * (parts["self"] + parts["next"]) / 2
    assert parts["loss"].item() == pytest.approx(wanted.item(), rel=1e-6)


def test_texts_of_one_sentence_are_left_out(make_encoder):
    encoder, objective, _ = ready(make_encoder)
    rows = Dataset.from_list([{"text": "One. Two."}, {"text": "Only this one."}])
    assert objective.prepare(rows, encoder)["text"] == ["One. Two."]
    with pytest.raises(ValueError, match="none of 1 texts has two sentences"):
        objective.prepare(rows.select([1]), encoder)


def bags_of(batch, encoder, texts):
    """The bags that a batch has and those of the tokens in its rows, by decoding; and how many rows are truncated."""
    wrong = wanted_tokens = truncated = 0
    for i, text in enumerate(texts):
        plain = " ".join(split_sentences(text))
        ids = batch["text"].input_ids[i][batch["text"].where(Segment.TEXT)[i]].tolist()
        read = encoder.tokenizer.decode(ids, clean_up_tokenization_spaces=False).rstrip("\ufffd")  # part of a character
        assert plain.startswith(read)
        truncated += not any(read == " ".join(split_sentences(text)[:n]) for n in range(1, 40))
        for block, said in enumerate((read, plain[len(read) :])):
            words = [w for w in re.sub(r"[\W_]+", " ", said).split() if w.lower() not in ENGLISH_STOP_WORDS]
            wanted = set(encoder.tokenizer(" ".join(words), add_special_tokens=False).input_ids)
            found = {t for t in batch["targets"][i, block].tolist() if t >= 0}
            wrong += len(found ^ wanted)
            wanted_tokens += len(wanted)
    return wrong, wanted_tokens, truncated


def test_bags_hold_what_the_row_reads_and_what_follows_it(make_encoder):
    """Where the limit truncates the first part, too: not a word that is not read, and no gap before what follows."""
    encoder, objective, _ = ready(make_encoder, max_length=52)
    texts = [f"{a} {b} {c}" for a, b, c in itertools.permutations(SENTENCES, 3)]
    batch = objective.collate([{"text": text} for text in texts], encoder)
    wrong, wanted, truncated = bags_of(batch, encoder, texts)
    assert truncated > 40 and wanted > 500
    assert wrong == 0
