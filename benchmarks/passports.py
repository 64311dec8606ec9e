"""Sabotaged servers: which faults a passport's checker names, and whether it accuses honest ones.

    PYTHONPATH=. python benchmarks/passports.py [MODEL] [--honest N]

A server is the model itself, its vectors computed by plain transformers calls on rows of token ids with nothing of
`embrew.passport`. Each has one fault; a cell is a fault in a layout: mean pooling, last token with EOS, memory token.
A cell cannot be decided where the fault moves no text beyond the tolerance, or two faults give the same vectors.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch

from embrew.check_passport import Check, Passport, check, distances, requests
from embrew.encoder import Encoder
from embrew.passport.making import make_passport, write_passport
from embrew.text.tokens import Row, Segment, Tokens

PROMPT = "find the answer: "
LAYOUTS: dict[str, dict[str, Any]] = {
    "mean": {"template": "{instruction}{text}", "pooling": "mean", "attention": "bidirectional"},
    "last": {"template": "{instruction}{text}{eos}", "pooling": "last"},
    "memory": {
        "template": "{instruction}{text}{memory}",
        "memory_tokens": 1,
        "pooling": {"mode": "last", "over": "memory"},
    },
}
EXPECTED: dict[str, set[str]] = {
    "prompt missing": {"prompt_missing"},
    "other side's prompt": {"prompt_other_document"},
    "prompt doubled": {"prompt_doubled"},
    "last token missing": {"eos_missing", "end_missing"},
    "last token doubled": {"eos_doubled", "eos_added"},
    "BOS added": {"bos_added", "bos_doubled"},
    "truncated at 128": {"truncated_128"},
    "truncated on the left": {"truncated_left"},
    "pooling": {"pooling_mean", "pooling_last", "pooling_cls"},
    "not normalised": {"norm"},
    "adapter missing": {"adapter_missing"},
    "adapter doubled": {"adapter_doubled"},
    "lower-cased": {"lower_case"},
    "attention": {"attention_causal", "attention_bidirectional"},
    "4 bits": {"quantised_4bit", "quantised"},
    "dimensions": {"dimensions"},
}


class Server:
    """The model run text by text, with a fault."""

    def __init__(self, encoder: Encoder, fault: str = "") -> None:
        self.encoder, self.fault, self.model = encoder, fault, encoder
        if fault == "adapter doubled":
            self.model = copy.deepcopy(encoder)
            for module in self.model.modules():
                if hasattr(module, "scaling") and isinstance(module.scaling, dict):
                    module.scaling = {name: 2 * scale for name, scale in module.scaling.items()}
        if fault == "4 bits":
            self.model = copy.deepcopy(encoder)
            self.model.merge_adapter()
            four_bits(self.model)
        if fault == "attention":
            other = "causal" if encoder.attention.mode == "bidirectional" else "bidirectional"
            self.model = encoder.with_settings(attention=other)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of a request, each text alone."""
        if self.fault == "adapter missing":
            with self.encoder.backbone.adapter_off():
                return np.stack([self.vector(text) for text in texts])
        return np.stack([self.vector(text) for text in texts])

    def row(self, text: str) -> tuple[list[int], int]:
        """Token ids of a text, and how many of them come after it."""
        words = {"prompt missing": "", "other side's prompt": "passage: ", "prompt doubled": 2 * PROMPT}
        body = words.get(self.fault, PROMPT) + text
        body = body.lower() if self.fault == "lower-cased" else body
        template = self.encoder.template
        limit = 128 if self.fault == "truncated at 128" else self.encoder.max_seq_length
        ids = self.encoder.tokenizer(body, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        end = list(template.tail_row.ids)
        if self.fault == "last token missing":
            end = end[:-1]
        if self.fault == "last token doubled":
            end = [*end, *(end[-1:] or [self.encoder.tokenizer.eos_token_id])]
        bos = [self.encoder.tokenizer.bos_token_id]
        first = [*template.bos_ids, *(bos if self.fault == "BOS added" else [])]
        room = limit - len(first) - len(end)
        ids = ids[-room:] if self.fault == "truncated on the left" else ids[:room]
        return [*first, *ids, *end], len(end)

    def vector(self, text: str) -> np.ndarray:
        """The vector of a text: states of the backbone, pooled here."""
        ids, after = self.row(text)
        segments = [int(Segment.TEXT)] * (len(ids) - after) + [int(Segment.PROMPT)] * after
        with torch.inference_mode():
            tokens = Tokens.pad([Row(ids, segments)])
            states = self.model.backbone.hidden_states(tokens, self.model.attention)[0].float()
        reads_mean = self.encoder.pooling.mode == "mean"
        if self.fault == "pooling":
            reads_mean = not reads_mean
        vector = (states.mean(0) if reads_mean else states[-1]).numpy()
        if self.fault == "dimensions":
            vector = vector[: len(vector) // 2]
        return vector if self.fault == "not normalised" else vector / np.linalg.norm(vector)


def four_bits(encoder: Encoder) -> None:
    """Round the weights of linear layers to 16 levels with a scale and an offset per 32, as GGUF's Q4_1 does."""
    for module in encoder.backbone.inner.modules():
        if type(module) is torch.nn.Linear:
            blocks = module.weight.data.view(-1, 32)
            low, high = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)
            step = (high - low).clamp_min(1e-12) / 15
            module.weight.data = (((blocks - low) / step).round() * step + low).view_as(module.weight)


def encoder_of(model: str, layout: str) -> Encoder:
    """An encoder in a layout, with a LoRA that changes its vectors."""
    encoder = Encoder.from_pretrained(
        model, dtype="float32", max_length=256, prompts={"query": PROMPT, "document": "passage: "}, **LAYOUTS[layout]
    )
    torch.manual_seed(harness.SEED)
    encoder.backbone.add_lora({"r": 8, "lora_alpha": 16})
    for name, parameter in encoder.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.03)
    return encoder.eval()


def honest(encoder: Encoder, count: int) -> dict[str, Callable[[list[str]], Any]]:
    """Honest servers: bf16 and fp16 weights, int8 weights, batches of every size, rounded answers, orders of sums."""
    short = {name: copy.deepcopy(encoder) for name in ("bfloat16", "float16", "int8")}
    for name, each in short.items():
        each.merge_adapter()
        if name == "int8":
            for module in each.backbone.inner.modules():
                if type(module) is torch.nn.Linear:
                    scale = module.weight.data.abs().amax(1, keepdim=True) / 127
                    module.weight.data = (module.weight.data / scale).round() * scale
        else:
            each.to(getattr(torch, name))
    servers: dict[str, Callable[[list[str]], Any]] = {}
    number = 0
    while len(servers) < count:
        name = ("float32", "bfloat16", "float16", "int8")[number % 4]
        size, digits = 1 + number // 4 % 16, (None, 6, 4)[number % 3]
        model = short.get(name, encoder)

        def embed(texts: list[str], model: Encoder = model, size: int = size, digits: int | None = digits) -> Any:
            vectors = np.asarray(model.encode_query(texts, batch_size=size, show_progress_bar=False))
            return vectors if digits is None else np.round(vectors, digits)

        servers[f"{name}, batches of {size}, {digits or 'all'} digits, {number}"] = embed
        number += 1
    return servers


def cells(layout: str, encoder: Encoder, passport: Passport) -> list[dict[str, Any]]:
    """One row per fault: what the checker names, and whether the cell can be decided."""
    texts = [text for _, text in requests(passport, "query")]
    right = Server(encoder)(texts)
    vectors = {fault: Server(encoder, fault)(texts) for fault in EXPECTED}
    rows = []
    for fault, measured in vectors.items():
        by_text = dict(zip(texts, measured, strict=True))
        found: Check = check(passport, lambda batch, v=by_text: [v[text] for text in batch], prompt="query")
        distance = distances(measured, right)
        moved = fault in ("not normalised", "dimensions") or float(distance.max()) > passport.tolerance
        same = [
            other
            for other, each in vectors.items()
            if other != fault
            and each.shape == measured.shape
            and distances(each, measured).max() < 1e-6
            and (fault not in ("not normalised",) and other != "not normalised")
        ]
        named = {part for name in found.faults for part in name.split("+")}
        rows.append(
            {
                "layout": layout,
                "fault": fault,
                "named": found.faults,
                "right": bool(named & EXPECTED[fault]) and (not found.ambiguous or bool(same)),
                "decidable": moved and not same,
                "same_as": same,
                "largest_distance": float(distance.max()),
                "verdict": found.verdict,
            }
        )
    return rows


KEYS = ("right", "decidable")


def main() -> None:
    """Run all cells and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--honest", type=int, default=200)
    parser.add_argument("--output", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    harness.one_core()
    rows, accused, seconds = [], [], {}
    for layout in LAYOUTS:
        encoder = encoder_of(options.model, layout)
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            write_passport(make_passport(encoder, name=options.model, int8=True), Path(folder))
            seconds[layout] = round(time.process_time() - start, 2)
            int8 = Passport.read(folder)
        passport = Passport({**int8.about, "allowed": [x for x in int8.about["allowed"] if x != "int8"]}, int8.tensors)
        rows += cells(layout, encoder, passport)
        share = options.honest // 3 + (layout == "memory") * (options.honest % 3)
        for name, embed in honest(encoder, share).items():
            found = check(int8 if name.startswith("int8") else passport, embed, prompt="query")
            if not found.equal:
                accused.append({"layout": layout, "server": name, "verdict": found.verdict, "evidence": found.evidence})
        print(layout, sum(row["right"] for row in rows if row["layout"] == layout), len(accused), flush=True)
    decidable = [row for row in rows if row["decidable"]]
    summary = {
        "cells": len(rows),
        "decidable": len(decidable),
        "named_right": sum(row["right"] for row in decidable),
        "honest": options.honest,
        "accused": len(accused),
        "seconds_of_a_passport": seconds,
    }
    command = f"python benchmarks/passports.py {options.model} --honest {options.honest}"
    around = harness.circumstances(command)
    cells_of = [
        [row["layout"], row["fault"], ", ".join(row["named"]) or "nothing", *("yes" if row[k] else "no" for k in KEYS)]
        for row in rows
    ]
    lines = [
        "# Sabotaged servers",
        "",
        f"{summary['named_right']} of {len(decidable)} cells that can be decided are named right; {len(accused)} of "
        f"{options.honest} honest servers are accused. CPU seconds of one passport: {seconds}.",
        "",
        *harness.table(["layout", "fault", "named", "right", "can be decided"], cells_of),
        "",
        *harness.origin(around),
        f"- seed: {around['seed']}",
    ]
    result = {**around, "model": options.model, **summary, "rows": rows, "accusations": accused}
    harness.write("passports", lines, result, options.output)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
