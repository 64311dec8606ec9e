"""Training steps on a real model beside those of other code, for `real_model.py`.

A step is collation, forward and backward pass, AdamW. Both sides compute in bfloat16 where the processor has
instructions for it, and in float32 elsewhere. Before anything is timed, both get the same LoRA and compute loss and
gradients without dropout.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import harness
import torch
from peft import LoraConfig
from real_encoding import LIMIT, Line, lognormal, passes, stock
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.sentence_transformer import losses
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from embrew.data.datasets import load
from embrew.recipe import Recipe, build
from embrew.text.tokens import Tokens
from embrew.training.step import MiniBatchSize, TrainStep

TRIPLETS = 32
LOSS, GRADIENT = 0.02, 0.99  # largest relative difference of losses, smallest cosine of gradients
ROUNDED = 0.9  # of gradients of contrast in bfloat16, where one text may turn with the rounding; in float32, `GRADIENT`
BUDGETS = (1024, 4096)  # tokens per forward pass of gradient caching that the peer may choose from
SMALL = 4  # triplets of a micro-batch of the peer without caching; more did not fit into 20 GB
CACHED = {f"cached, {budget} tokens per pass": {"budget": budget} for budget in BUDGETS}
CHUNKS = (32, 16, 8)  # texts per chunk of our gradient caching
Rows = list[dict[str, Any]]


# ---- sides ---------------------------------------------------------------------------------------------------------


class Side:
    """A module that is trained; each of `losses` collates a micro-batch and computes its loss."""

    def __init__(self, module: nn.Module, *losses: Callable[[], Tensor]) -> None:
        self.module, self.losses = module.train(), losses
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=1e-5, fused=True)

    def differentiate(self, *, short: bool = True) -> float:
        """Compute loss and gradients, with matrix products in bfloat16 if `short` and this processor has them."""
        total = 0.0
        for compute in self.losses:
            with torch.autocast("cpu", torch.bfloat16, enabled=short and harness.SHORT):
                loss = compute() / len(self.losses)
            loss.backward()
            total += float(loss.detach())
        return total

    def step(self) -> None:
        """Train one step."""
        self.differentiate()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def lora(self) -> dict[str, nn.Parameter]:
        """Return the LoRA's parameters by names that both sides share."""
        return {name[name.index("layers.") :]: p for name, p in self.trained.items() if "lora_" in name}


def require_alike(ours: Side, peer: Side, least: float = GRADIENT, *, short: bool = True) -> dict[str, float]:
    """Give both sides the same LoRA, not zero, and compare loss and gradients without dropout.

    Gradients must have at least the cosine `least`. Both compute in bfloat16 if `short`.
    """
    own, theirs = ours.lora(), peer.lora()
    if own.keys() != theirs.keys() and theirs:
        raise harness.Unequal(f"{len(own)} and {len(theirs)} trained LoRA matrices, of other names")
    torch.manual_seed(harness.SEED)
    with torch.no_grad():
        for name, parameter in own.items():
            if "lora_B" in name:
                parameter.normal_(0, 0.02)
            theirs[name].copy_(parameter)
    values, gradients = [], []
    for side in (ours, peer):
        side.module.eval()
        values.append(side.differentiate(short=short))
        gradients.append(torch.cat([side.lora()[name].grad.flatten() for name in own]))
        side.optimizer.zero_grad(set_to_none=True)
        side.module.train()
    apart = abs(values[0] - values[1]) / abs(values[1])
    cosine = float(nn.functional.cosine_similarity(*gradients, dim=0))
    if not (apart <= LOSS and cosine >= least):
        raise harness.Unequal(f"losses {values[0]:.5f} and {values[1]:.5f}, cosine of gradients {cosine:.5f}")
    return {"loss": values[0], "peer's loss": values[1], "cosine of gradients": cosine}


def recipe_of(name: str, model: Path, *settings: str) -> Recipe:
    """Return a recipe of this folder on the model, with weights in the processor's arithmetic."""
    path = harness.HERE / "recipes" / f"{name}.yaml"
    return build.load_recipe(str(path), [f"encoder.model={model}", f"encoder.dtype={harness.ARITHMETIC}", *settings])


def embrew_side(
    recipe: Recipe,
    rows: Rows,
    kind: Callable[..., Any] | None = None,
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Side:
    """Return a step of a recipe's first stage, with another objective of the same settings if `kind` is given.

    It is made, and run forward, within a context.
    """
    torch.manual_seed(harness.SEED)
    objective: Any = build.objective(recipe.stages[0].objective)
    if kind is not None:
        objective = kind(**{one.name: getattr(objective, one.name) for one in fields(objective) if one.init})
    with within():
        encoder = build.starting_encoder(recipe, 0, None, device=torch.device("cpu"))
        build.prepare_encoder(encoder, recipe, 0, objective)
        step = TrainStep(encoder, objective)

    def loss() -> Tensor:
        with within():
            return step(**objective.collate(rows, encoder, seed=harness.SEED))["loss"]

    return Side(step, loss)


def batch_of(side: Side, rows: Rows) -> dict[str, Any]:
    """Return the batch that one of our sides reads, with demonstrations drawn."""
    step: Any = side.module
    batch = step.objective.collate(rows, step.encoder, seed=harness.SEED)
    inputs = getattr(step.objective, "inputs", None)
    return batch if inputs is None else inputs.complete(step.encoder, batch)


def tokens_of(side: Side, rows: Rows) -> dict[str, int]:
    """Return real and computed positions of a step of ours."""
    batch = batch_of(side, rows)
    parts = [*batch.values(), getattr(batch.get("drawn"), "prompted", None)]
    return {
        "real tokens": sum(sum(part.lengths) for part in parts if isinstance(part, Tokens)),
        **passes(side.module, side.step),
    }


# ---- contrastive learning ------------------------------------------------------------------------------------------


def nli() -> Rows:
    """Return NLI triplets of different texts."""
    seen: set[str] = set()
    chosen: Rows = []
    for row in load(Path(os.environ["EMBREW_DATA"]) / "nli_triplets", kind="pairs", max_rows=8 * TRIPLETS):
        texts = {row["query"], row["positive"], *row["negatives"]}
        if len(texts) == 3 and not texts & seen and len(chosen) < TRIPLETS:
            seen |= texts
            chosen.append({"query": row["query"], "positive": row["positive"], "negatives": row["negatives"]})
    return chosen


def stock_side(model: SentenceTransformer, rows: Rows, *, size: int | None = None, budget: int | None = None) -> Side:
    """Return a step of Sentence-Transformers' ranking loss.

    With `size`, gradients of that many triplets at a time are summed, each with its own negatives alone. With `budget`,
    gradients are cached, and a forward pass has at most that many tokens.
    """
    plain, cached = losses.MultipleNegativesRankingLoss, losses.CachedMultipleNegativesRankingLoss
    loss = plain(model) if budget is None else cached(model, mini_batch_num_tokens=budget)
    collate = BaseDataCollator(preprocess_fn=model.preprocess)
    flat = [{"query": row["query"], "positive": row["positive"], "negative": row["negatives"][0]} for row in rows]

    def compute(some: Rows) -> Tensor:
        batch = collate(some)
        features = [
            {key.removeprefix(f"{column}_"): value for key, value in batch.items() if key.startswith(f"{column}_")}
            for column in some[0]
        ]
        return loss(features, None)

    size = size or len(flat)
    return Side(loss, *(partial(compute, flat[i : i + size]) for i in range(0, len(flat), size)))


def products(model: Path, tokens: int) -> Callable[[], None]:
    """Return the products of a step with frozen weights: of all real tokens, forward and back to the inputs.

    The three products back to the first layer's input, which no step needs, are among them: 1 of 140.
    """
    inner = AutoModelForCausalLM.from_pretrained(model, dtype=harness.DTYPE, trust_remote_code=False).model.layers
    weights = [module.weight.detach() for module in inner.modules() if isinstance(module, nn.Linear)]
    wide = {size: torch.randn(tokens, size, dtype=harness.DTYPE) for weight in weights for size in weight.shape}

    def run() -> None:
        for weight in weights:
            torch.mm(wide[weight.shape[1]], weight.T)
            torch.mm(wide[weight.shape[0]], weight)

    return run


def contrast(model: Path, rounds: int) -> dict[str, Line]:
    """Compare steps on NLI triplets with those of Sentence-Transformers."""
    ways = {"one pass per column": {}, **CACHED}
    return contrasted(model, nli(), rounds, "NLI lengths", ways, {"its default": 3.0, "its fastest": 2.3})


def contrast_mixed(model: Path, rounds: int) -> dict[str, Line]:
    """Compare steps on texts of lognormal lengths with the fastest of Sentence-Transformers that fit in memory."""
    texts = lognormal(model, 3 * TRIPLETS // 2)  # with all of them, two sides did not fit into 20 GB
    rows = [
        {"query": one, "positive": two, "negatives": [three]}
        for one, two, three in zip(texts[::3], texts[1::3], texts[2::3], strict=True)
    ]
    ways = {**CACHED, f"{SMALL} triplets at a time, fewer negatives": {"size": SMALL}}
    return contrasted(model, rows, rounds, "lognormal lengths", ways, {"its fastest": 2.3})


def contrasted(
    model: Path, rows: Rows, rounds: int, name: str, ways: dict[str, dict[str, int]], goals: dict[str, float]
) -> dict[str, Line]:
    """Compare steps with ways of Sentence-Transformers, and with their matrix products alone.

    The first way has the same loss, with which ours is compared; it is "its default".
    """
    settings = f"encoder.max_length={{query: {LIMIT}, document: {LIMIT}}}"
    recipe = recipe_of("baselines/nli-nano", model, settings)
    ours, body = embrew_side(recipe, rows), stock(model, torch.float32)
    body.add_adapter(LoraConfig(**(recipe.encoder.lora or {}), task_type="FEATURE_EXTRACTION"))
    peers = {way: stock_side(body, rows, **options) for way, options in ways.items()}
    first = next(iter(peers))
    exact = embrew_side(recipe_of("baselines/nli-nano", model, settings, "encoder.dtype=float32"), rows)
    equality = {"in float32": require_alike(exact, peers[first], short=False)}
    if harness.SHORT:
        equality["in bfloat16"] = require_alike(ours, peers[first], ROUNDED)
    del exact
    sweep = {way: harness.turns({way: peer.step}, 1)[way].cpu[0] for way, peer in peers.items()}
    chosen = {"its default": first, "its fastest": min(sweep, key=sweep.__getitem__)}
    own = tokens_of(ours, rows)
    sides = {"ours": ours.step, "products": products(model, own["real tokens"])}
    sides |= {way: peers[way].step for way in {chosen[goal] for goal in goals}}
    pairs = {goal: (chosen[goal], "ours") for goal in goals}
    found = harness.compared(sides, {**pairs, "share": ("products", "ours")}, rounds)
    setting = f"{len(rows)} triplets, LoRA r 16 on every linear layer"
    facts: dict[str, Any] = {"setting": setting, "equality": equality, "ours": own}
    lines = {}
    for goal, least in goals.items():
        way = chosen[goal]
        theirs = {
            "with": f"float32 weights{', bf16 autocast' if harness.SHORT else ''}, peft; {way}",
            **passes(peers[way].module, peers[way].step),
            "seconds of each way": sweep,
        }
        lines[f"contrastive step, {name}: {goal}"] = harness.line(
            found[goal], least=least, against=f"Sentence-Transformers, {goal}", peer=theirs, **facts
        )
    alone = "torch.mm of all real tokens with every frozen weight, forward and backward"
    lines[f"contrastive step, {name}: share of the ceiling"] = harness.line(
        found["share"], least=0.7, against="its matrix products alone", peer=alone, **facts
    )
    return lines


def gradient_cache(model: Path, rounds: int) -> dict[str, Line]:
    """Compare our steps with gradient caching with plain ones, in units of what the further forward passes cost.

    Caching runs every chunk but the last forward a second time: of n chunks it costs 1 + (n - 1) / n times the share of
    a step that is the forward pass.
    """
    rows = nli()
    plain = embrew_side(recipe_of("baselines/nli-nano", model), rows)
    step: Any = plain.module

    def forward() -> None:
        with torch.no_grad():
            plain.losses[0]()

    def cached(size: int) -> Side:
        chunked = TrainStep(step.encoder, step.objective, MiniBatchSize(rows=size))
        return Side(chunked, lambda: chunked(**step.objective.collate(rows, step.encoder, seed=harness.SEED))["loss"])

    sides = {size: cached(size) for size in CHUNKS}
    equality = {f"{size} texts": require_alike(side, plain) for size, side in sides.items()}
    counts = {size: (passes(side.module, side.step)["forward passes"] + 1) // 2 for size, side in sides.items()}
    calls = {"plain": plain.step, "forward": forward, **{str(size): side.step for size, side in sides.items()}}
    pairs = {"forward": ("forward", "plain"), **{str(size): (str(size), "plain") for size in CHUNKS}}
    found, lines = harness.compared(calls, pairs, rounds), {}
    for size, chunks in counts.items():
        expected = 1 + (chunks - 1) / chunks * found["forward"]["ratio"]
        scaled = {key: found[str(size)][key] / expected for key in ("ratio", "low", "high")}
        lines[f"gradient caching, {size} texts per chunk: time beyond its arithmetic"] = harness.line(
            {**found[str(size)], **scaled},
            most=1.05,
            against=f"{expected:.2f} of our plain step",
            setting=f"{TRIPLETS} NLI triplets, LoRA r 16, {chunks} chunks",
            equality=equality[f"{size} texts"],
            ours={"times the plain step": found[str(size)]["ratio"], "forward pass": found["forward"]["ratio"]},
        )
    return lines
