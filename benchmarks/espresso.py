"""ESE's loss, beside a faithful loop over layers as the public code has it, and beside full decompositions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import torch
from harness import SEED, Bar, Benchmark, Measure, Outcome
from models import minilm, triplets
from torch import Tensor
from torch.nn import functional

from embrew.losses import compression_target, info_nce, layer_weights
from embrew.losses.espresso import per_text_target, with_signs
from embrew.methods import Contrastive, Espresso
from embrew.methods.embedding import text_keys

ROWS, K = 128, 128
CASES = {"384-12": (384, 12), "768-12": (768, 12)}
TARGET, LOSS = 1e-4, 1e-3  # relative

Decompose = Callable[[Tensor], Tensor]


def decaying(width: int, layers: int) -> Tensor:
    """Layers of 64 queries and 64 documents, a spectrum that decays as that of text embeddings does."""
    generator = torch.Generator().manual_seed(SEED)
    scale = 0.3 * torch.arange(1, width + 1).pow(-0.5) * math.sqrt(width) / 4
    mixing = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
    queries, documents = (torch.randn(layers, ROWS, width, generator=generator) * scale @ mixing).chunk(2, dim=1)
    return torch.cat([queries, queries + 0.3 * documents], dim=1)


@torch.no_grad()
def of_minilm() -> Tensor:
    """All layers of all-MiniLM-L6-v2 for 64 queries and their positives."""
    encoder, rows = minilm().eval(), triplets(ROWS // 2)
    return encoder.layers(encoder.tokens([row[side] for side in ("query", "positive") for row in rows]))


def objective(**settings: Any) -> Espresso:
    """Ours, the sums of the public code but for where it begins to count layers."""
    return Espresso(base=Contrastive(mask_same_text=False), compression_size=K, **settings)


def ours(given: dict[str, Tensor], **settings: Any) -> Callable[[], Tensor]:
    """Loss and gradient."""
    built = objective(**settings)
    batch = {f"{role}_keys": text_keys([f"{role} {i}" for i in range(ROWS // 2)]) for role in given}

    def run() -> Tensor:
        loss = built.loss(given, batch)["loss"]
        torch.autograd.grad(loss, list(given.values()))
        return loss.detach()

    return run


def peer(given: dict[str, Tensor], decompose: Decompose) -> Callable[[], Tensor]:
    """One layer after the other: its loss, a decomposition of its dependency matrix, its alignment."""
    layers = len(given["query"])
    weights = layer_weights(layers).tolist()
    labels = torch.arange(ROWS // 2)

    def of_layer(x: Tensor, queries: Tensor, documents: Tensor) -> Tensor:
        with torch.no_grad():
            target = x @ decompose(torch.softmax(x.T @ x / math.sqrt(x.shape[1]), dim=-1))
        kl = functional.kl_div(x[:, :K].log_softmax(-1), target.softmax(-1), reduction="batchmean")
        align = functional.mse_loss(x[:, :K], target) + kl
        return info_nce(queries[:, :K], documents[:, :K], labels, temperature=0.05) + align

    def run() -> Tensor:
        total: Any = 0.0
        for i in range(layers):
            queries, documents = given["query"][i], given["document"][i]
            scale = 1.0 if i == layers - 1 else weights[i] / (layers - 1)
            total = total + scale * of_layer(torch.cat([queries, documents]), queries, documents)
        total = total + info_nce(given["query"][-1], given["document"][-1], labels, temperature=0.05)
        torch.autograd.grad(total, list(given.values()))
        return total.detach()

    return run


def lowrank(matrix: Tensor) -> Tensor:
    """As the public code calls it: no more columns than asked for, the global generator, signs as they come."""
    u, s, _ = torch.svd_lowrank(matrix, q=K)
    return u * s


def full(matrix: Tensor) -> Tensor:
    """The library's decomposition, signs settled."""
    u, s, _ = torch.linalg.svd(matrix)
    return with_signs(u[:, :K] * s[:K])


def by(decompose: Decompose, x: Tensor) -> Tensor:
    """The targets of every layer."""
    return torch.stack([layer @ decompose(torch.softmax(layer.T @ layer / math.sqrt(x.shape[-1]), -1)) for layer in x])


def settled(target: Tensor, wanted: Tensor) -> Tensor:
    """A target with the signs of another, column by column: where two entries are nearly the largest, a rule tips."""
    return target.double() * torch.where((target.double() * wanted).sum(1, keepdim=True) < 0, -1.0, 1.0)


def gap(target: Tensor, wanted: Tensor) -> float:
    """Relative, of norms."""
    return float((target - wanted).norm() / wanted.norm())


def require_same(x: Tensor, wanted: Tensor, given: dict[str, Tensor]) -> dict[str, float]:
    """Our target and the wanted one, our loss and that of full decompositions."""
    return {
        "target, ours, against float64": harness.require_equal(
            "targets", [(settled(compression_target(x, K), wanted), wanted)], TARGET
        ),
        "loss, full decompositions": harness.require_equal("losses", [(ours(given)(), peer(given, full)())], LOSS),
    }


def exactness(x: Tensor, wanted: Tensor) -> tuple[Measure, dict[str, Any]]:
    """How far targets are from those wanted: a ratio of all layers' errors, and every layer's."""
    found = {"ours": compression_target(x, K), "public loop": by(lowrank, x), "full, float32": by(full, x)}
    found = {who: settled(target, wanted) for who, target in found.items()}
    error = {who: gap(target, wanted) for who, target in found.items()}
    bar = Bar(gate=1.0, target=1.0)
    measure = Measure.of("error of the targets, the public loop", "relative", error["ours"], error["public loop"], bar)
    layers = [
        {"layer": i + 1, **{who: gap(target[i], wanted[i]) for who, target in found.items()}} for i in range(len(x))
    ]
    return measure, {"targets of every layer against float64, relative": layers}


def loss(benchmark: Benchmark, *, layers_of: Callable[[], Tensor]) -> Outcome:
    """Against both peers, in time; against float64, in exactness."""
    x = layers_of()
    queries, documents = x.chunk(2, dim=1)
    given = {"query": queries.clone().requires_grad_(), "document": documents.clone().requires_grad_()}
    wanted = by(full, x.double())
    equality = require_same(x, wanted, given)
    measures = [
        harness.time_pairs(f"time of the loss, {what}", ours(given), peer(given, decompose), bar, rounds=rounds)
        for what, decompose, bar, rounds in (
            ("the public loop", lowrank, Bar(gate=1.1, target=1.3, stretch=1.5), 7),
            ("a full decomposition a layer", full, Bar(gate=2.5, target=4.0, stretch=5.0), 3),
        )
    ]
    exact, notes = exactness(x, wanted)
    return Outcome(equality=equality, measures=[*measures, exact], notes=notes)


def per_text(benchmark: Benchmark) -> Outcome:
    """A matrix for every text of 32."""
    x = torch.randn(32, 768, generator=torch.Generator().manual_seed(SEED))

    def loop() -> Tensor:
        targets = []
        for row in x:
            u, s, _ = torch.svd_lowrank(torch.softmax(row[:, None] * row / math.sqrt(768), -1), q=K)
            targets.append(row @ (u * s))
        return torch.stack(targets)

    wanted = []
    for row in x.double():
        u, s, _ = torch.linalg.svd(torch.softmax(row[:, None] * row / math.sqrt(768), -1))
        wanted.append(row @ with_signs(u[:, :K] * s[:K]))
    found = per_text_target(x, K).double()
    equality = {
        "first five components, against float64": harness.require_equal(
            "targets", [(found[:, :5], torch.stack(wanted)[:, :5])], TARGET
        )
    }
    measure = harness.time_pairs(
        "time of the targets", partial(per_text_target, x, K), loop, Bar(gate=10, target=20), unit="s", rounds=5
    )
    return Outcome(equality=equality, measures=[measure])


AGAINST = "against a loop over layers with svd_lowrank, as in the authors' code, and with full decompositions"
BENCHMARKS = [
    *(
        Benchmark(
            name=f"espresso-{case}",
            title=f"ESE's loss and gradient, {layers} layers of {ROWS} texts, d = {width}, k = {K}, {AGAINST}: a "
            "spectrum that decays, float32, one core.",
            run=partial(loss, layers_of=partial(decaying, width, layers)),
        )
        for case, (width, layers) in CASES.items()
    ),
    Benchmark(
        name="espresso-minilm",
        title=f"ESE's loss and gradient on the 6 layers of all-MiniLM-L6-v2 for {ROWS} texts of NLI pairs, d = 384, "
        f"k = {K}, {AGAINST}: float32, one core.",
        run=partial(loss, layers_of=of_minilm),
    ),
    Benchmark(
        name="espresso-per-text",
        title="A dependency matrix for every one of 32 texts, d = 768, k = 128, against svd_lowrank of each: one core.",
        run=per_text,
    ),
]
