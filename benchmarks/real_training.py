"""Training steps on a real model beside those of other code, for `real_model.py`.

A step is collation, forward and backward pass under bfloat16 autocast, AdamW. Ours trains what a recipe says, on
weights in bfloat16. Before anything is timed, both sides get the same LoRA and compute loss and gradients without
dropout.
"""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import harness
import torch
from peft import LoraConfig, get_peft_model
from real_encoding import LIMIT, Line, lognormal, passes, stock
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.sentence_transformer import losses
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from embrew import assembly
from embrew.data.datasets import load
from embrew.methods.ese import Espresso
from embrew.recipe import Recipe
from embrew.text.tokens import Segment, Tokens
from embrew.training.step import TrainStep

TRIPLETS, PARAGRAPHS = 32, 8
LOSS, GRADIENT = 0.02, 0.99  # largest relative difference of losses, smallest cosine of gradients, in bfloat16
BUDGETS = (1024, 2048, 4096)  # tokens per forward pass of gradient caching that the peer may choose from
SMALL = 4  # triplets of a micro-batch of the peer without caching; more did not fit into 20 GB
Rows = list[dict[str, Any]]


# ---- sides ---------------------------------------------------------------------------------------------------------


class Side:
    """A module that is trained; each of `losses` collates a micro-batch and computes its loss."""

    def __init__(self, module: nn.Module, *losses: Callable[[], Tensor]) -> None:
        self.module, self.losses = module.train(), losses
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=1e-5, fused=True)

    def differentiate(self) -> float:
        """Compute loss and gradients."""
        total = 0.0
        for compute in self.losses:
            with torch.autocast("cpu", torch.bfloat16):
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


def require_alike(ours: Side, peer: Side, least: float = GRADIENT) -> dict[str, float]:
    """Give both sides the same LoRA, not zero, and compare loss and gradients without dropout.

    Gradients must have at least the cosine `least`.
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
        values.append(side.differentiate())
        gradients.append(torch.cat([side.lora()[name].grad.flatten() for name in own]))
        side.optimizer.zero_grad(set_to_none=True)
        side.module.train()
    apart = abs(values[0] - values[1]) / abs(values[1])
    cosine = float(nn.functional.cosine_similarity(*gradients, dim=0))
    if not (apart <= LOSS and cosine >= least):
        raise harness.Unequal(f"losses {values[0]:.5f} and {values[1]:.5f}, cosine of gradients {cosine:.5f}")
    return {"loss": values[0], "peer's loss": values[1], "cosine of gradients": cosine}


def recipe_of(name: str, model: Path, *settings: str) -> Recipe:
    """Return a recipe of this folder on the model, in bfloat16."""
    path = harness.HERE / "recipes" / f"{name}.yaml"
    return assembly.load_recipe(str(path), [f"encoder.model={model}", "encoder.dtype=bfloat16", *settings])


def embrew_side(recipe: Recipe, rows: Rows, kind: Callable[..., Any] | None = None) -> Side:
    """Return a step of a recipe's first stage, with another objective of the same settings if `kind` is given."""
    torch.manual_seed(harness.SEED)
    objective: Any = assembly.objective(recipe.stages[0].objective)
    if kind is not None:
        objective = kind(**{name: getattr(objective, name) for name in objective.__dataclass_fields__})
    encoder = assembly.starting_encoder(recipe, 0, None, device=torch.device("cpu"))
    assembly.prepare_encoder(encoder, recipe, 0, objective)
    step = TrainStep(encoder, objective)

    def loss() -> Tensor:
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
    inner = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).model.layers
    weights = [module.weight.detach() for module in inner.modules() if isinstance(module, nn.Linear)]
    wide = {size: torch.randn(tokens, size, dtype=torch.bfloat16) for weight in weights for size in weight.shape}

    def run() -> None:
        for weight in weights:
            torch.mm(wide[weight.shape[1]], weight.T)
            torch.mm(wide[weight.shape[0]], weight)

    return run


def contrast(model: Path, rounds: int) -> dict[str, Line]:
    """Compare steps on NLI triplets with those of Sentence-Transformers."""
    return contrasted(model, nli(), rounds, "NLI lengths", 2.5, {"one pass per column": {}})


def contrast_mixed(model: Path, rounds: int) -> dict[str, Line]:
    """Compare steps on texts of lognormal lengths with the fastest of Sentence-Transformers that fit in memory."""
    texts = lognormal(model, 3 * TRIPLETS)
    rows = [
        {"query": one, "positive": two, "negatives": [three]}
        for one, two, three in zip(texts[::3], texts[1::3], texts[2::3], strict=True)
    ]
    ways = {f"cached, {budget} tokens per pass": {"budget": budget} for budget in BUDGETS}
    ways[f"{SMALL} triplets at a time, fewer negatives"] = {"size": SMALL}
    return contrasted(model, rows, rounds, "lognormal lengths", 1.6, ways)


def contrasted(
    model: Path, rows: Rows, rounds: int, name: str, least: float, ways: dict[str, dict[str, int]]
) -> dict[str, Line]:
    """Compare steps with the fastest of some ways of Sentence-Transformers, and with their matrix products alone.

    The first way has the same loss, with which ours is compared.
    """
    recipe = recipe_of("baselines/nli-nano", model, f"encoder.max_length={{query: {LIMIT}, document: {LIMIT}}}")
    ours, body = embrew_side(recipe, rows), stock(model, torch.float32)
    body.add_adapter(LoraConfig(**(recipe.encoder.lora or {}), task_type="FEATURE_EXTRACTION"))
    peers = {way: stock_side(body, rows, **options) for way, options in ways.items()}
    equality = require_alike(ours, next(iter(peers.values())))
    sweep = (
        {way: harness.turns({way: peer.step}, 1)[way].cpu[0] for way, peer in peers.items()} if len(ways) > 1 else {}
    )
    best = min(sweep, key=sweep.__getitem__, default=next(iter(peers)))
    own = tokens_of(ours, rows)
    sides = {"ours": ours.step, "peer": peers[best].step, "products": products(model, own["real tokens"])}
    found = harness.compared(sides, {"step": ("peer", "ours"), "share": ("products", "ours")}, rounds)
    setting = f"{len(rows)} triplets, LoRA r 16 on every linear layer"
    facts: dict[str, Any] = {"setting": setting, "equality": equality, "ours": own}
    theirs = {
        "with": f"float32 weights, bf16 autocast, peft; {best}",
        **passes(peers[best].module, peers[best].step),
        "seconds of each way": sweep,
    }
    alone = "torch.mm of all real tokens with every frozen weight, forward and backward"
    against = "Sentence-Transformers" + (", its fastest batching" if sweep else "")
    return {
        f"contrastive step, {name}": harness.line(found["step"], least=least, against=against, peer=theirs, **facts),
        f"contrastive step, {name}: share of the ceiling": harness.line(
            found["share"], least=0.6, against="its bf16 matrix products alone", peer=alone, **facts
        ),
    }


# ---- context compression -------------------------------------------------------------------------------------------


class TwoCopies(nn.Module):
    """Distillation into memory tokens with two copies of the model, as LLM2Comp's public code computes it.

    Written anew: an encoder with a LoRA, a frozen copy as teacher and decoder, logits of all positions, all hidden
    states kept, a loop over texts. The logarithm of the softmax is in float32 and in one call, memory tokens are a
    parameter of their own, and no cache of keys and values is kept: all in the peer's favour, or without effect.

    In float32, loss and gradients are ours to 1e-5. In bfloat16 the gradients of SmolLM2's memory states are so sensitive
    to rounding that those of either side differ from float32's; only losses are compared.
    """

    def __init__(self, model: Path, lora: dict[str, Any], memory: Tensor) -> None:
        super().__init__()
        lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self.frozen = copy.deepcopy(lm).requires_grad_(False)
        lm.config.is_causal = False  # the encoder reads in both directions
        self.encoder = get_peft_model(lm, LoraConfig(**lora))
        self.memory = nn.Parameter(memory.detach().clone().float())

    def read(self, model: nn.Module, tokens: Tokens, memory: Tensor) -> Any:
        """Run a copy over all positions; memory states or tokens stand where ids are not of the vocabulary."""
        embed: Any = self.frozen.get_input_embeddings()
        states = embed(tokens.input_ids.clamp(max=embed.num_embeddings - 1))
        slots = (tokens.segment_ids == Segment.MEMORY) | (tokens.segment_ids == Segment.SOFT)
        states = states.masked_scatter(slots[..., None], memory.to(states.dtype)) if slots.any() else states
        return model(
            inputs_embeds=states, attention_mask=tokens.attention_mask, output_hidden_states=True, use_cache=False
        )

    def forward(self, *, context: Tokens, student: Tokens, teacher: Tokens) -> Tensor:
        """Return the mean over texts of KL(teacher, student), the mean over a text's predictions."""
        encoded = self.read(self.encoder, context, self.memory.expand(len(context.lengths), -1, -1))
        memory = encoded.hidden_states[-1][context.segment_ids == Segment.MEMORY]
        wanted = self.read(self.frozen, teacher, memory).logits
        got = self.read(self.frozen, student, memory).logits
        kls = []
        for row, count in enumerate((student.segment_ids == Segment.TARGET).sum(1).tolist()):
            ends = teacher.lengths[row], student.lengths[row]
            sides = (logits[row, end - count - 1 : end] for logits, end in zip((wanted, got), ends, strict=True))
            log_p, log_q = (logits.log_softmax(-1, dtype=torch.float32) for logits in sides)
            kls.append((log_p.exp() * (log_p - log_q)).sum(-1).mean())
        return torch.stack(kls).mean()


def paragraphs() -> Rows:
    """Return the first paragraphs of the recipe's data."""
    folder = Path(os.environ["EMBREW_DATA"]) / "wiki_paragraphs"
    return list(load(folder, kind="text", min_chars=400, max_chars=2000, max_rows=PARAGRAPHS, shuffle_seed=42))


def compression_sides(model: Path, *names: str) -> dict[str, Side]:
    """Return the steps, ours or on two copies; the peer reads our batch."""
    recipe, rows = recipe_of("llm2comp/nano-wiki", model), paragraphs()
    sides = {"ours": embrew_side(recipe, rows)}
    step: Any = sides["ours"].module
    if "peer" in names:
        memory = next(p for name, p in sides["ours"].trained.items() if "lora_" not in name)
        peer = TwoCopies(model, dict(recipe.encoder.lora or {}), memory)
        collate = partial(step.objective.collate, rows, step.encoder, seed=harness.SEED)
        sides["peer"] = Side(peer, lambda: peer(**collate()))
    return sides


def growth(model: Path, name: str) -> int:
    """Return by how many bytes a first step raises the peak of resident memory above what is held before."""
    side = compression_sides(model, name)[name]
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    side.step()
    return resident("VmHWM") - before


def resident(name: str) -> int:
    """Return a figure of this process in bytes."""
    lines = dict(one.split(":", 1) for one in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])


def compression(model: Path, rounds: int) -> dict[str, Line]:
    """Compare distillation steps with those on two copies of the model, in time and in memory."""
    sides, rows = compression_sides(model, "ours", "peer"), paragraphs()
    equality = require_alike(
        sides["ours"], sides["peer"], least=-1
    )  # in bf16 they are mostly rounding; see `TwoCopies`
    steps = {name: side.step for name, side in sides.items()}
    found = harness.compared(steps, {"time": ("peer", "ours")}, rounds)["time"]
    own, theirs = tokens_of(sides["ours"], rows), passes(sides["peer"].module, sides["peer"].step)
    facts: dict[str, Any] = {
        "against": "two copies, all logits, as LLM2Comp's code",
        "setting": f"{PARAGRAPHS} paragraphs of at most 128 tokens, 8 memory tokens, LoRA r 16",
        "equality": equality,
        "ours": own,
        "peer": {**theirs, "with": "bf16 weights, bf16 autocast, peft; forward passes of the encoder alone"},
    }
    bytes_of = {}
    for name in ("ours", "peer"):
        command = [sys.executable, __file__, str(model), name]
        bytes_of[name] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    times = bytes_of["peer"] / bytes_of["ours"]
    memory = {**harness.alone(times), "bytes": bytes_of}
    return {
        "compression step": harness.line(found, least=1.6, **facts),
        "compression step: peak memory above the models": harness.line(memory, least=2, **facts),
    }


# ---- ESE and EPIC --------------------------------------------------------------------------------------------------


class LoopedEspresso(Espresso):
    """ESE's loss in a loop over layers with `svd_lowrank`, as the authors' code; the forward pass is ours."""

    signs: ClassVar[bool] = False  # of singular vectors, arbitrary in that code; chosen where losses are compared

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return the sum of ESE's default preset."""
        k, count = self.compression_size, len(embeddings["query"])
        total = self.base.loss({role: vectors[-1] for role, vectors in embeddings.items()}, batch)["loss"]
        for i in range(count):
            shallow = {role: vectors[i, :, :k] for role, vectors in embeddings.items()}
            loss = self.base.loss(shallow, batch)["loss"] + self.aligned(torch.cat([v[i] for v in embeddings.values()]))
            total = total + loss * (1.0 if i == count - 1 else 1.0 / (1.0 + math.log(i + 1)) / (count - 1))
        return {"loss": total}

    def aligned(self, vectors: Tensor) -> Tensor:
        """Return how far the first dimensions of a layer are from their target."""
        with torch.autocast("cpu", enabled=False):
            x, k = vectors.float(), self.compression_size
            with torch.no_grad():
                u, s, _ = torch.svd_lowrank((x.T @ x / math.sqrt(x.shape[1])).softmax(-1), q=k)
                if self.signs:
                    u = u * u.gather(0, u.abs().argmax(0, keepdim=True)).sign()
                target = x @ (u * s)
            kl = nn.functional.kl_div(x[:, :k].log_softmax(-1), target.softmax(-1), reduction="batchmean")
            return nn.functional.mse_loss(x[:, :k], target) + kl


def ese(model: Path, rounds: int) -> dict[str, Line]:
    """Compare ESE steps with those of a loop over layers."""
    recipe = recipe_of("ese/nano", model, "stages.espresso.objective.compression_size=128")
    rows = nli()
    ours, peer = embrew_side(recipe, rows), embrew_side(recipe, rows, LoopedEspresso)
    LoopedEspresso.signs = True
    equality = require_alike(ours, peer)
    LoopedEspresso.signs = False
    found = harness.compared({"ours": ours.step, "peer": peer.step}, {"step": ("peer", "ours")}, rounds)["step"]
    line = harness.line(
        found,
        least=1.5,
        against="a loop over layers with svd_lowrank",
        setting=f"{TRIPLETS} NLI triplets, all layers, k 128, LoRA r 32",
        equality=equality,
        ours=tokens_of(ours, rows),
        peer={**passes(peer.module, peer.step), "with": "the same forward pass"},
    )
    return {"ESE step": line}


def epic(model: Path, rounds: int) -> dict[str, Line]:
    """Compare EPIC steps with demonstrations as text, and with none."""
    rows = [{**row, "instruction": "Retrieve entailed text: "} for row in nli()]
    text = ["encoder.demonstrations.compress=none", "stages.supervised.objective.type=icl"]
    plain = ["encoder.demonstrations=null", "stages.supervised.objective={type: contrastive, temperature: 0.05}"]
    changes: dict[str, list[str]] = {"ours": [], "text": text, "plain": plain}
    sides = {name: embrew_side(recipe_of("epic/nano", model, *settings), rows) for name, settings in changes.items()}
    drawn = [batch_of(sides[name], rows)["drawn"].rows for name in ("ours", "text")]
    if not torch.equal(*drawn):
        raise harness.Unequal("vectors and text show other demonstrations")
    counts = {name: tokens_of(side, rows) for name, side in sides.items()}
    pairs = {"text": ("text", "ours"), "plain": ("ours", "plain")}
    found = harness.compared({name: side.step for name, side in sides.items()}, pairs, rounds)
    facts: dict[str, Any] = {
        "setting": f"{TRIPLETS} NLI triplets, 0 to 5 demonstrations, LoRA r 16",
        "equality": "other computations; the same demonstrations are drawn",
        "ours": counts["ours"],
    }
    return {
        "EPIC step": harness.line(
            found["text"], least=2, against="demonstrations as text", peer=counts["text"], **facts
        ),
        "EPIC step: time in units of plain instruction tuning": harness.line(
            found["plain"], most=1.2, against="no demonstrations", peer=counts["plain"], **facts
        ),
    }


if __name__ == "__main__":
    harness.one_core()
    print(growth(Path(sys.argv[1]), sys.argv[2]))
