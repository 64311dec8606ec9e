import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from embrew.methods import Contrastive, InContext
from embrew.methods.embedding import text_keys
from embrew.recipe import build
from embrew.text.tokens import Segment
from tests.objectives.cases import embedded

TEXTS = [
    "The quick brown fox jumps over the lazy dog near the river.",
    "A vector.",
    "She sells sea shells by the sea shore.",
    "Numbers such as 1234 and 3.14 are text too.",
]
PAIRS = [
    {"query": "which animal jumps", "positive": TEXTS[0], "negatives": [], "instruction": None},
    {
        "query": "embedding?",
        "positive": TEXTS[1],
        "negatives": ["A word.", "A language model reads."],
        "instruction": None,
    },
    {"query": "who sells shells", "positive": TEXTS[2], "negatives": ["He buys them."], "instruction": None},
]


def text_rows(texts=TEXTS):
    return [{"text": text} for text in texts]


def plain_loop(queries, candidates, places, temperature=0.05, dropped=()):
    """InfoNCE over unit vectors, number by number; `dropped` holds (query, column) pairs that are left out."""
    total = 0.0
    for b, query in enumerate(queries):
        scores = {
            j: float(np.dot(query, candidate)) / temperature
            for j, candidate in enumerate(candidates)
            if (b, j) not in dropped
        }
        total += math.log(sum(math.exp(score) for score in scores.values())) - scores[places[b]]
    return total / len(queries)


def call(objective, encoder, rows):
    with torch.no_grad():
        return objective(encoder, objective.collate(rows, encoder))["loss"].item()


# ---- dropout positives ----------------------------------------------------------------------------------------


def test_dropout_positives_need_dropout(make_encoder):
    with pytest.raises(ValueError, match="positives=dropout without any dropout"):
        Contrastive(positives="dropout").setup(make_encoder(lora={"lora_dropout": 0.0}))
    Contrastive(positives="dropout").setup(make_encoder(lora={"lora_dropout": 0.05}))
    Contrastive(positives="dropout", attention_dropout=0.2).setup(make_encoder(lora={}))


@pytest.mark.parametrize(("attention_dropout", "lora_dropout"), [(0.2, 0.0), (0.0, 0.3)])
def test_two_masks_give_two_vectors(make_encoder, attention_dropout, lora_dropout):
    encoder = make_encoder(lora={"lora_dropout": lora_dropout})
    objective = Contrastive(positives="dropout", attention_dropout=attention_dropout)
    objective.setup(encoder)
    encoder.train()
    batch = objective.collate(text_rows(), encoder)
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        embeddings = embedded(objective, encoder, batch)
        losses.append(objective.loss(embeddings, batch)["loss"].item())
        assert (embeddings["query"] - embeddings["document"]).abs().max(-1).values.min() > 1e-3  # z ≠ z' in every text
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_without_dropout_the_loss_is_that_of_the_self_similarity_matrix(make_encoder):
    encoder = make_encoder(lora={})
    objective = Contrastive(positives="dropout", temperature=0.1)
    batch = objective.collate(text_rows(), encoder)
    with torch.no_grad():
        embeddings = embedded(objective, encoder, batch)
        z = embeddings["query"]
        torch.testing.assert_close(z, embeddings["document"], rtol=0, atol=1e-6)
        unit = normalize(z, dim=-1)
        expected = cross_entropy(unit @ unit.T / 0.1, torch.arange(4))
        assert objective.loss(embeddings, batch)["loss"].item() == pytest.approx(expected.item(), abs=1e-6)


# ---- pairs with hard negatives --------------------------------------------------------------------------------


def test_ragged_negatives_are_a_plain_loop(make_encoder):
    encoder = make_encoder(lora={})
    queries = [encoder.encode_query(row["query"]) for row in PAIRS]
    columns = [row["positive"] for row in PAIRS] + [text for row in PAIRS for text in row["negatives"]]
    assert len(columns) == 3 + 0 + 2 + 1
    candidates = [encoder.encode_document(text) for text in columns]
    loss = call(Contrastive(), encoder, PAIRS)
    assert loss == pytest.approx(plain_loop(queries, candidates, [0, 1, 2]), rel=1e-4)


def test_without_in_batch_negatives_a_query_sees_its_own_documents(make_encoder):
    encoder = make_encoder(lora={})
    rows = PAIRS[1:]
    columns = [row["positive"] for row in rows] + [text for row in rows for text in row["negatives"]]
    owners = [0, 1, 0, 0, 1]
    queries = [encoder.encode_query(row["query"]) for row in rows]
    candidates = [encoder.encode_document(text) for text in columns]
    dropped = {(b, j) for b in range(2) for j, owner in enumerate(owners) if owner != b}
    alone = plain_loop(queries, candidates, [0, 1], dropped=dropped)
    assert abs(alone - plain_loop(queries, candidates, [0, 1])) > 0.01
    objective = Contrastive(in_batch_negatives=False)
    assert call(objective, encoder, rows) == pytest.approx(alone, rel=1e-4)
    apart = [call(objective, encoder, [row]) for row in rows]  # so nothing of another row enters
    assert sum(apart) / 2 == pytest.approx(alone, rel=1e-4)


def test_columns_of_the_same_text_are_left_out(make_encoder):
    encoder = make_encoder(lora={})
    rows = [
        {"query": "one", "positive": "same answer", "negatives": ["one", "no"]},
        {"query": "two", "positive": "same answer", "negatives": ["other"]},
        {"query": "one", "positive": "another answer", "negatives": ["same answer"]},
    ]
    columns = ["same answer", "same answer", "another answer", "one", "no", "other", "same answer"]
    dropped = {(0, 1), (0, 3), (0, 6), (1, 0), (1, 6), (2, 3)}
    dropped |= {(0, 2), (2, 0), (2, 1), (2, 6)}  # the query "one" has two positives
    queries = [encoder.encode_query(row["query"]) for row in rows]
    candidates = [encoder.encode_document(text) for text in columns]
    masked = plain_loop(queries, candidates, [0, 1, 2], dropped=dropped)
    whole = plain_loop(queries, candidates, [0, 1, 2])
    assert abs(masked - whole) > 0.01
    assert call(Contrastive(), encoder, rows) == pytest.approx(masked, rel=1e-4)
    assert call(Contrastive(mask_same_text=False), encoder, rows) == pytest.approx(whole, rel=1e-4)


def test_instructions_stand_before_queries_only(make_encoder):
    encoder = make_encoder(prompts={"query": "search: ", "document": "text: "}, lora={})
    rows = [
        {"query": "fox", "positive": TEXTS[0], "negatives": ["fox"], "instruction": "find the animal: "},
        {"query": "fox", "positive": TEXTS[1], "negatives": [], "instruction": None},
        {"query": "fox", "positive": TEXTS[2], "negatives": [], "instruction": ""},
        {"query": "fox", "positive": TEXTS[3]},
    ]
    batch = Contrastive().collate(rows, encoder)

    def words(tokens, segment):
        return [
            encoder.tokenizer.decode(ids[labels == segment]).replace("<s>", "")
            for ids, labels in zip(tokens.input_ids, tokens.segment_ids, strict=True)
        ]

    assert words(batch["query"], Segment.PROMPT) == ["find the animal: ", "search: ", "", "search: "]
    assert words(batch["query"], Segment.TEXT) == ["fox"] * 4
    assert words(batch["document"], Segment.PROMPT) == ["text: "] * 5
    assert words(batch["document"], Segment.TEXT) == [*TEXTS, "fox"]
    prompts = ["find the animal: ", "search: ", "", "search: "]
    queries = [encoder.encode("fox", prompt=prompt) for prompt in prompts]
    candidates = [encoder.encode_document(text) for text in [*TEXTS, "fox"]]
    dropped = {(b, 4) for b in range(4)}  # the negative with the words of every query
    dropped |= {(b, j) for b in range(4) for j in range(4) if b != j}  # one text asks, with four positives
    assert call(Contrastive(), encoder, rows) == pytest.approx(
        plain_loop(queries, candidates, range(4), dropped=dropped), rel=1e-4
    )


def test_symmetric_is_the_mean_of_both_directions(make_encoder):
    encoder = make_encoder(lora={})
    rows = [*PAIRS, {"query": PAIRS[0]["query"], "positive": "another", "negatives": [TEXTS[1]]}]
    queries = [encoder.encode_query(row["query"]) for row in rows]
    columns = [row["positive"] for row in rows] + [text for row in rows for text in row["negatives"] or []]
    candidates = [encoder.encode_document(text) for text in columns]
    there = plain_loop(queries, candidates, range(4), dropped={(1, len(columns) - 1), (0, 3), (3, 0)})
    back = plain_loop(candidates[:4], queries, range(4), dropped={(0, 3), (3, 0)})  # two rows ask the same
    assert call(Contrastive(), encoder, rows) == pytest.approx(there, rel=1e-4)
    assert call(Contrastive(symmetric=True), encoder, rows) == pytest.approx((there + back) / 2, rel=1e-4)


def test_both_sides_are_the_2b_candidates_of_equation_8(make_encoder):
    """*Learning to Compress*, Eq. 8: z_i against all 2B vectors; as printed, with itself, and NT-Xent without."""
    encoder = make_encoder(lora={})
    rows = [*PAIRS, {"query": "another?", "positive": PAIRS[0]["query"], "negatives": []}]  # query 0 is a positive too
    queries = [encoder.encode_query(row["query"]) for row in rows]
    columns = [row["positive"] for row in rows] + [text for row in rows for text in row["negatives"]]
    candidates = [encoder.encode_document(text) for text in columns]
    first = len(columns)
    assert (len(rows), first) == (4, 7)

    def loss(**settings):
        return call(Contrastive(candidates="both", **settings), encoder, rows)

    printed = plain_loop(queries, [*candidates, *queries], range(4))
    assert loss(mask_same_text=False) == pytest.approx(printed, rel=1e-4)
    itself = {(i, first + i) for i in range(4)}
    same = {(0, 3), (3, first)}  # the text of query 0 as a positive; for row 3, the text of its own positive
    without = plain_loop(queries, [*candidates, *queries], range(4), dropped=itself | same)
    assert printed - without > 0.1
    assert loss() == pytest.approx(without, rel=1e-4)
    back = plain_loop(candidates[:4], [*queries, *candidates[:4]], range(4))  # no hard negatives in this direction
    assert loss(mask_same_text=False, symmetric=True) == pytest.approx((printed + back) / 2, rel=1e-4)


def test_equation_8_by_hand():
    """B = 2 at a temperature of 1; cosines 0.6, 0, 0.8, 1: numerator e^0.6, denominator over four vectors."""
    embeddings = {
        "query": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "document": torch.tensor([[0.6, 0.8], [0.8, 0.6]]),
    }
    batch = {"query_keys": text_keys(["a", "b"]), "document_keys": text_keys(["c", "d"])}
    printed = Contrastive(candidates="both", temperature=1.0, mask_same_text=False).loss(embeddings, batch)["loss"]
    by_hand = -0.6 + math.log(math.exp(0.6) + math.exp(0.8) + math.exp(1.0) + math.exp(0.0))
    assert printed.item() == pytest.approx(by_hand, rel=1e-6)  # the other row has the same cosines
    others = Contrastive(candidates="both", temperature=1.0).loss(embeddings, batch)["loss"]
    assert others.item() == pytest.approx(-0.6 + math.log(math.exp(0.6) + math.exp(0.8) + math.exp(0.0)), rel=1e-6)


def test_both_sides_need_the_batch():
    with pytest.raises(ValueError, match="candidates=documents and without symmetric"):
        Contrastive(candidates="both", in_batch_negatives=False)
    with pytest.raises(ValueError, match="candidates=both goes with contrastive"):
        InContext(candidates="both")


# ---- false negatives by the model's own scores ------------------------------------------------------------------


def test_likely_right_answers_are_left_out_after_the_warm_up():
    """Query 0 is closer to document 2 than to its own; only then, and only once the warm-up is over."""
    embeddings = {
        "query": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "document": torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.8, 0.6]]),
    }
    batch = {"query_keys": text_keys(["a", "b"]), "document_keys": text_keys(["c", "d", "e"])}
    objective = Contrastive(temperature=1.0, false_negative_margin=0.0, false_negative_warmup=0.5)
    plain = Contrastive(temperature=1.0).loss(embeddings, batch)["loss"]
    early = objective.loss(embeddings, {**batch, "progress": torch.tensor(0.4)})
    assert early["loss"] == plain and early["masked"] == 0
    late = objective.loss(embeddings, {**batch, "progress": torch.tensor(0.5)})
    first = -0.6 + math.log(math.exp(0.6) + math.exp(0.0))
    second = -1.0 + math.log(math.exp(0.8) + math.exp(1.0) + math.exp(0.6))
    assert late["loss"].item() == pytest.approx((first + second) / 2, rel=1e-6)
    assert late["masked"].item() == pytest.approx(1 / 6)


# ---- a teacher's scores, and who gets an instruction -------------------------------------------------------------


def test_distillation_in_a_plain_loop(make_encoder):
    """Two negatives, none, one; the KL term beside InfoNCE."""
    encoder = make_encoder(lora={"lora_dropout": 0.0})
    rows = [
        {"query": "one", "positive": "a", "negatives": ["b", "c"], "scores": [3.0, 1.0, 2.5]},
        {"query": "two", "positive": "d", "negatives": [], "scores": [0.5]},
        {"query": "three", "positive": "e", "negatives": ["f"], "scores": [-1.0, 1.0]},
    ]
    objective = Contrastive(temperature=0.1, distillation_weight=2.0, distillation_temperature=0.5)
    objective.setup(encoder)
    batch = objective.collate(rows, encoder)
    parts = objective(encoder, batch)
    plain = Contrastive(temperature=0.1)(encoder, batch)["loss"]
    total = 0.0
    for row in rows:
        q, *d = encoder.encode([row["query"], row["positive"], *row["negatives"]])
        student, teacher = [float(q @ x) / 0.1 for x in d], [score / 0.5 for score in row["scores"]]
        p, s = (torch.tensor(scores).log_softmax(0) for scores in (teacher, student))
        total += float((p.exp() * (p - s)).sum())
    assert float(parts["distillation"]) == pytest.approx(total / 3, rel=1e-4)
    assert parts["loss"].item() == pytest.approx(plain.item() + 2.0 * total / 3, rel=1e-4)
    parts["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


def test_documents_get_an_instruction_where_the_data_says_so(make_encoder):
    encoder = make_encoder(prompts={"query": "ask ", "document": "doc "})
    rows = [
        {"query": "one", "positive": "a", "negatives": ["b"], "instruction": "same ", "document_instruction": "same "},
        {"query": "two", "positive": "c", "negatives": [], "instruction": "find "},
        {"query": "three", "positive": "d", "negatives": ["e"], "document_instruction": ""},
    ]
    batch = Contrastive().collate(rows, encoder)
    shown = [
        encoder.tokenizer.decode([i for i, s in zip(*row, strict=True) if s in (Segment.PROMPT, Segment.TEXT)])
        for role in ("query", "document")
        for row in zip(batch[role].input_ids.tolist(), batch[role].segment_ids.tolist(), strict=True)
    ]
    assert [text.removeprefix("<s>").strip() for text in shown] == [
        *("same one", "find two", "ask three"),
        *("same a", "doc c", "d", "same b", "e"),
    ]


def test_scale_is_another_word_for_temperature():
    assert build.objective({"type": "contrastive", "scale": 20}).temperature == 0.05
    assert build.objective({"type": "angle", "scale": 20.0}).temperature == 0.05
    with pytest.raises(ValueError, match="give one of them"):
        build.objective({"type": "contrastive", "scale": 20, "temperature": 0.05})
    with pytest.raises(ValueError, match="has no key 'scale'"):
        build.objective({"type": "mntp", "scale": 20})
