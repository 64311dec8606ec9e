"""Demonstrations of the batch: which are drawn, what is put before a query, and where gradients go."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from embrew.methods.demonstrations import of_demonstrations
from embrew.model.context_vectors import initialize_demonstrator
from embrew.model.contexts import Context
from embrew.recipe import build
from embrew.settings.encoder import Demonstrations
from embrew.training.step import MiniBatchSize, TrainStep
from tests.conftest import SENTENCES, by_default
from tests.objectives.cases import check_fits, embedded
from tests.training.test_gradcache import gradients, same

ROWS = [
    {"query": text[3:14], "positive": text[: 15 + 4 * i], "negatives": [SENTENCES[i - 1][:12]] * (i % 3)}
    for i, text in enumerate(SENTENCES)
]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"compress": "all"},
    {"compress": "query"},
    {"compress": "passage"},
    {"format": "query"},
    {"format": "passage"},
    {"format": "one_instruction", "normalize": True},
    {"every": 4},
    {"compress": "all", "every": 6},
    {"learnable": 5},
    {"format": "instruction"},
    {"format": "instruction", "compress": "all"},
    {"compress": "none"},
]


def objective_for(variant: dict[str, Any], **settings: Any) -> Any:
    return build.objective({"type": "icl" if variant.get("compress") == "none" else "epic", **settings})


def ready(make_encoder: Any, variant: dict[str, Any], family: str = "llama", **settings: Any) -> Any:
    """Encoder and objective, in training, dropout off."""
    lora = {"lora_dropout": 0.0}
    encoder = make_encoder(
        family,
        memory_tokens=0,
        attention="causal",
        template="{instruction}{text}{eos}",
        prompts={"query": "find: "},
        max_length=48,
        lora=lora,
        demonstrations=Demonstrations(**variant),
    )
    initialize_demonstrator(encoder)
    objective = objective_for(variant, **settings)
    objective.setup(encoder)
    return encoder.train(), objective


def planted(generator: random.Random, size: int) -> list[dict[str, Any]]:
    """Rows of two data sets in which many texts occur more than once, on either side."""
    texts = [f"text {i}" for i in range(size)]
    return [
        {"query": generator.choice(texts), "positive": generator.choice(texts), "data_set": generator.randrange(2)}
        for _ in range(size)
    ]


def drawn(objective: Any, encoder: Any, rows: list[dict[str, Any]], **more: Any) -> list[list[int]]:
    batch = {**objective.collate(rows, encoder, seed=more.pop("seed", 0)), **more}
    rows_drawn = objective.inputs.complete(encoder, batch)["drawn"].rows.tolist()
    return [[i for i in row if i >= 0] for row in rows_drawn]


def test_what_is_never_drawn(make_encoder):
    encoder, objective = ready(make_encoder, {"format": "instruction"}, demonstrations=8)
    counts = set()
    for seed in range(60):
        rows = planted(random.Random(seed), 4 + seed % 20)
        for i, rows_drawn in enumerate(drawn(objective, encoder, rows, seed=seed)):
            pair = {rows[i]["query"], rows[i]["positive"]}
            allowed = [
                j
                for j, row in enumerate(rows)
                if row["data_set"] == rows[i]["data_set"] and not pair & {row["query"], row["positive"]}
            ]
            assert i not in allowed
            assert set(rows_drawn) <= set(allowed) and len(set(rows_drawn)) == len(rows_drawn) <= 8
            counts.add((len(rows_drawn), len(allowed)))
    assert {(0, 0), (1, 1)} <= counts, "fewer where fewer are left"
    assert {count for count, _ in counts} == set(range(9))


def test_a_draw_depends_on_seed_progress_and_texts_alone(make_encoder):
    encoder, objective = ready(make_encoder, {"format": "instruction"})
    rows = [{"query": f"q{i}", "positive": f"p{i}"} for i in range(12)]
    order = random.Random(1).sample(range(12), 12)
    first = drawn(objective, encoder, rows)
    shuffled = drawn(objective, encoder, [rows[i] for i in order])
    assert [[order[j] for j in shuffled[order.index(i)]] for i in range(12)] == first
    random.seed(3)
    torch.manual_seed(3)
    assert drawn(objective, encoder, rows) == first
    assert drawn(objective, encoder, rows, seed=1) != first
    assert drawn(objective, encoder, rows, progress=torch.tensor(0.5)) != first


@pytest.mark.parametrize("variant", by_default(VARIANTS[::4], VARIANTS), ids=str)
def test_a_prompt_in_training_is_the_context_at_inference(make_encoder, variant):
    """The embedding of a query with its demonstrations is what the encoder makes of it with that context."""
    encoder, objective = ready(make_encoder, variant)
    batch = objective.inputs.complete(encoder, objective.collate(ROWS, encoder, seed=5))
    encoder.eval()
    with torch.no_grad():
        embeddings = embedded(objective, encoder, batch)
    embeddings = {role: vectors[0] if vectors.ndim == 3 else vectors for role, vectors in embeddings.items()}
    queries = embeddings["query"]
    if "prompted" in embeddings:
        queries = queries.index_copy(0, batch["drawn"].prompted_rows, embeddings["prompted"])
    rows_drawn = [[i for i in row if i >= 0] for row in batch["drawn"].rows.tolist()]
    assert len({len(rows) for rows in rows_drawn}) > 2, "rows with different numbers of demonstrations"
    for i, rows in enumerate(rows_drawn):
        pairs = tuple((ROWS[j]["query"], ROWS[j]["positive"]) for j in rows)
        encoder.add_context("task", Context("find: ", pairs))
        wanted = encoder.encode(ROWS[i]["query"], "task", convert_to_tensor=True)
        torch.testing.assert_close(normalize(queries[i], dim=-1), wanted, atol=3e-6, rtol=1e-4)


def test_without_demonstrations_it_is_plain_contrastive_learning(make_encoder):
    encoder, objective = ready(make_encoder, {}, demonstrations=0)
    plain = build.objective({"type": "contrastive"})
    batch = objective.collate(ROWS, encoder)
    assert torch.equal(objective(encoder, batch)["loss"], plain(encoder, batch)["loss"])


@pytest.mark.parametrize("family", by_default(["mistral"], ["llama", "mistral"]))
@pytest.mark.parametrize("detach", [False, True])
def test_where_gradients_go(make_encoder, family, detach):
    """Through the demonstrations into the projection, and into the texts they were made of unless detached."""
    encoder, objective = ready(make_encoder, {}, family, demo_grad="detach" if detach else "full")
    batch = objective.inputs.complete(encoder, objective.collate(ROWS, encoder, seed=5))
    embeddings = {role: v.detach().requires_grad_() for role, v in embedded(objective, encoder, batch).items()}
    table = objective.inputs.prompt_vectors(encoder, embeddings, batch)
    encoder(batch["drawn"].prompted.with_soft(table)).square().sum().backward()
    grads = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    assert {name for name, p in encoder.named_parameters() if p.requires_grad} == set(grads)
    assert all("lora" in name or name.startswith("demonstrator") for name in grads), "the base gets none"
    assert all(grad.abs().max() > 0 for name, grad in grads.items() if name.startswith("demonstrator"))
    if detach:
        assert embeddings["query"].grad is None and embeddings["document"].grad is None
    else:
        rows_drawn = {j for row in batch["drawn"].rows.tolist() for j in row if j >= 0}
        for role in ("query", "document"):
            reached = {int(i) for i in embeddings[role].grad.abs().sum(-1).nonzero()}
            assert reached and reached <= rows_drawn
            assert reached == rows_drawn or family == "mistral", "whose window is 8 tokens here"


CHAINED = [(variant, {}) for variant in VARIANTS if variant not in ({"format": "query"}, {"format": "passage"})] + [
    ({"compress": "all", "every": 6}, settings)
    for settings in ({"demo_grad": "detach"}, {"plain_weight": 0.5, "symmetric": True})
]


@pytest.mark.parametrize(("variant", "settings"), by_default(CHAINED[-1:] + CHAINED[7:8], CHAINED), ids=str)
def test_chained_caching_is_one_pass(make_encoder, variant, settings):
    """Loss and every gradient, in chunks of two."""
    encoder, objective = ready(make_encoder, variant, **settings)
    batch = objective.collate(ROWS, encoder, seed=5)
    plain, wanted = gradients(TrainStep(encoder, objective), batch, scale=4.0)
    loss, cached = gradients(TrainStep(encoder, objective, MiniBatchSize(rows=2)), batch, scale=4.0)
    assert abs(loss - plain) <= 1e-6 * abs(plain)
    trained = any(name.startswith("encoder.demonstrator") for name in cached)
    assert trained == bool(list(encoder.demonstrator.parameters()))
    same(cached, wanted)
    with torch.no_grad():
        assert abs(TrainStep(encoder, objective, MiniBatchSize(rows=2))(**batch)["loss"] - plain) <= 1e-6 * abs(plain)


def test_caching_without_any_demonstration(make_encoder):
    """The projection has a gradient, of zero, as data-parallel training needs it."""
    encoder, objective = ready(make_encoder, {}, demonstrations=0)
    batch = objective.collate(ROWS, encoder)
    for chunks in (None, MiniBatchSize(rows=2)):
        _, grads = gradients(TrainStep(encoder, objective, chunks), batch)
        projection = [grad for name, grad in grads.items() if "demonstrator" in name]
        assert len(projection) == 4 and all(bool((grad == 0).all()) for grad in projection)


@pytest.mark.parametrize("variant", [{}, {"compress": "none"}], ids=str)
def test_demonstrations_left_out_of_the_softmax(make_encoder, variant):
    encoder, objective = ready(make_encoder, variant, mask_demo_negatives=True, mask_same_text=False)
    _, other = ready(make_encoder, variant, mask_same_text=False)
    batch = objective.inputs.complete(encoder, objective.collate(ROWS, encoder, seed=5))
    owners = [*range(5), *(i for i, row in enumerate(ROWS) for _ in row["negatives"])]
    wanted = torch.tensor([[j in row for j in owners] for row in batch["drawn"].rows.tolist()])
    assert wanted.any() and not wanted[:, :5].diagonal().any(), "never a query's own positive"
    with torch.no_grad():
        embeddings = embedded(objective, encoder, batch)
        documents = embeddings["document"]
        assert torch.equal(of_demonstrations(batch, everywhere=True), wanted)
        queries = embeddings["query"]
        if "prompted" in embeddings:
            queries = queries.index_copy(0, batch["drawn"].prompted_rows, embeddings["prompted"])
        cosines = normalize(queries, dim=-1) @ normalize(documents, dim=-1).T
        scores = (cosines / 0.05).masked_fill(wanted, float("-inf"))
        parts = objective.loss(embeddings, batch)
        torch.testing.assert_close(parts["loss"], (scores.logsumexp(-1) - scores[:, :5].diagonal()).mean())
        scores = cosines / 0.05
        unmasked = other.loss(embeddings, batch)["loss"]
        torch.testing.assert_close(unmasked, (scores.logsumexp(-1) - scores[:, :5].diagonal()).mean())
        passages = torch.cat([wanted[:, :5], torch.zeros(5, len(owners) - 5, dtype=torch.bool)], 1)
        torch.testing.assert_close(parts["demo_similarity"], cosines[passages].mean())
        rest = ~wanted & (torch.arange(len(owners)) != torch.arange(5)[:, None]) & wanted.any(-1, keepdim=True)
        torch.testing.assert_close(parts["other_similarity"], cosines[rest].mean())


@pytest.mark.parametrize(
    ("variant", "settings", "words"),
    [
        ({"compress": "none"}, {"type": "epic"}, "compress=none makes them plain text, which objective type: icl"),
        ({}, {"type": "icl"}, "compress=pair puts vectors into prompts, which objective type: epic"),
        ({"learnable": 3}, {"type": "epic"}, "demonstrations=5, and encoder.demonstrations.learnable=3"),
        (
            {"format": "instruction"},
            {"type": "epic", "plain_weight": 1.0},
            "plain_weight goes with demonstrations that",
        ),
        ({}, {"type": "epic", "positives": "dropout", "attention_dropout": 0.1}, "demonstrations are pairs"),
        (
            {},
            {"type": "matryoshka_2d", "dims": [32, 8], "base": {"type": "epic"}},
            "reads every layer, and Epic puts embeddings of the last into prompts; nest it in matryoshka",
        ),
    ],
)
def test_refusals(make_encoder, variant, settings, words):
    encoder = make_encoder(
        memory_tokens=0,
        attention="causal",
        template="{instruction}{text}{eos}",
        demonstrations=Demonstrations(**variant),
    )
    with pytest.raises(ValueError, match=words):
        check_fits(build.objective(settings), encoder)


def test_nested_in_matryoshka(make_encoder):
    encoder, base = ready(make_encoder, {})
    nested = build.objective({"type": "matryoshka", "dims": [32, 8], "base": {"type": "epic"}})
    batch = nested.collate(ROWS, encoder, seed=5)
    parts = nested(encoder, batch)
    torch.testing.assert_close(parts["loss_32"], base(encoder, batch)["loss"].detach())
    _, wanted = gradients(TrainStep(encoder, nested), batch)
    _, cached = gradients(TrainStep(encoder, nested, MiniBatchSize(rows=2)), batch)
    same(cached, wanted)
