"""Training steps of the methods on a real model beside the same in other forms, for `real_model.py`.

Run with a model's folder and `ours` or `peer`, it prints by how many bytes a distillation step raises the peak memory.
"""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import harness
import torch
from mechanisms import alone
from peft import LoraConfig, get_peft_model
from real_encoding import Line, passes
from real_training import TRIPLETS, Rows, Side, batch_of, embrew_side, nli, recipe_of, require_alike, tokens_of
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from embrew.data.datasets import load
from embrew.methods import embedding
from embrew.methods.ese import Espresso
from embrew.model import adapters
from embrew.recipe.build import encoders
from embrew.text.tokens import Segment, Tokens

PARAGRAPHS = 8

# ---- context compression -------------------------------------------------------------------------------------------


class TwoCopies(nn.Module):
    """Distillation into memory tokens with two copies of the model, as LLM2Comp's public code computes it.

    Written anew: an encoder with a LoRA, a frozen copy as teacher and decoder, logits of all positions, all hidden
    states kept, a loop over texts. The logarithm of the softmax is in float32 and in one call, memory tokens are a
    parameter of their own, and no cache of keys and values is kept: all in the peer's favour, or without effect.

    In float32, loss and gradients are ours to 1e-5. In bfloat16 only losses are compared: one of the paragraphs has a
    gradient twenty times as large as the others', whose direction changes with the rounding of its memory states.
    """

    def __init__(self, model: Path, lora: dict[str, Any], memory: Tensor) -> None:
        super().__init__()
        lm = AutoModelForCausalLM.from_pretrained(model, dtype=harness.DTYPE, trust_remote_code=False)
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
    equality = require_alike(sides["ours"], sides["peer"], least=-1)  # see `TwoCopies`
    steps = {name: side.step for name, side in sides.items()}
    found = harness.compared(steps, {"time": ("peer", "ours")}, rounds)["time"]
    own, theirs = tokens_of(sides["ours"], rows), passes(sides["peer"].module, sides["peer"].step)
    facts: dict[str, Any] = {
        "against": "two copies, all logits, as LLM2Comp's code",
        "setting": f"{PARAGRAPHS} paragraphs of at most 128 tokens, 8 memory tokens, LoRA r 16",
        "equality": equality,
        "ours": own,
        "peer": {
            **theirs,
            "with": f"weights and products in {harness.ARITHMETIC}, peft; forward passes of the encoder alone",
        },
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
    """ESE's loss in a loop over layers with `svd_lowrank`, as the authors' code."""

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


@contextmanager
def stock_layers() -> Iterator[None]:
    """Compute one padded pass per column with the layers of peft and transformers."""
    with (
        patch.object(adapters, "use_lora_linear", lambda model: None),
        patch.object(encoders, "use_own_sdpa"),
        patch.object(embedding, "embed_together", lambda *_: {}),
        alone(),
    ):
        yield


def ese(model: Path, rounds: int) -> dict[str, Line]:
    """Compare ESE steps with those of a loop over layers."""
    recipe = recipe_of("ese/nano", model, "stages.espresso.objective.compression_size=128")
    rows = nli()
    ours, peer = embrew_side(recipe, rows), embrew_side(recipe, rows, LoopedEspresso, stock_layers)
    LoopedEspresso.signs = True  # on our forward pass: targets change with the rounding of states
    equality = require_alike(ours, embrew_side(recipe, rows, LoopedEspresso))
    LoopedEspresso.signs = False
    found = harness.compared({"ours": ours.step, "peer": peer.step}, {"step": ("peer", "ours")}, rounds)["step"]
    line = harness.line(
        found,
        least=1.5,
        against="a loop over layers with svd_lowrank",
        setting=f"{TRIPLETS} NLI triplets, all layers, k 128, LoRA r 32",
        equality=equality,
        ours=tokens_of(ours, rows),
        peer={**passes(peer.module, peer.step), "with": "padded columns, layers of peft and transformers"},
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
