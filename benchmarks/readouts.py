"""What a readout hides: `python benchmarks/readouts.py [NAME=ENCODER ...] [--untrained MODEL ...] [--layers all]`.

Nothing is trained. Each encoder, and each untrained way to read a language model (last token, mean, Echo, PromptEOL,
memory tokens as they begin), is scored on STS raw, without the mean of training texts' vectors, and without their first
one to three components too ("All-but-the-Top", arXiv 1702.01417), which `embrew center` makes a layer of. Of encoders
with memory tokens the mean over the text is scored beside the memory. Mean and components are those of sentences of
wiki_paragraphs and of NLI; sentences that are evaluated are left out of them.

STS-B dev says which layer and how many components; with $REAL (`real_data.py`), the STS tests of the suite `real` stand
beside it. Scores are 100 × Spearman's correlation over all pairs of a set. Finished rows are kept, so that a stopped
run resumes; `results/NAME.md` and `.json` hold all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import RESULTS, circumstances, one_core, origin, table, write
from scipy.stats import spearmanr

from embrew import Encoder
from embrew.data.datasets import load
from embrew.model.center import fit
from embrew.opening import POOLINGS, open_model
from embrew.settings.encoder import Pooling

DEV, TESTS = "STS-B dev", "STS tests, mean"
COMPONENTS = 3
VARIANTS = ("raw", *map(str, range(COMPONENTS + 1)))
BATCH, LONGEST = 32, 128
MEMORY: dict[str, Any] = {"memory_tokens": 8, "template": "{text}{memory}", "attention": "bidirectional"}


def main() -> None:
    """Score what is not there, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="*", metavar="NAME=ENCODER", help="trained encoders")
    parser.add_argument("--untrained", nargs="*", default=[], metavar="[NAME=]MODEL", help="language models")
    parser.add_argument("--layers", nargs="*", default=["last"], help="`all`, `last`, or numbers")
    parser.add_argument("--texts", type=int, default=2000, help="training texts of each of the two sets")
    parser.add_argument("--pairs", type=int, help="the first pairs of each set; by default all")
    parser.add_argument("--name", default="readouts", help="of the result files")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    one_core()
    file = asked.output / f"{asked.name}.json"
    setting = {"texts": asked.texts, "pairs": asked.pairs}
    rows: dict[str, Any] = {}
    if file.is_file() and (earlier := json.loads(file.read_text()))["setting"] == setting:
        rows = earlier["rows"]
    sets = sts_sets(asked.pairs)
    evaluated = dict.fromkeys(text for pairs, _ in sts_sets(None).values() for pair in pairs for text in pair)
    keys = {key_of(text) for text in evaluated}
    training = [text for text in training_texts(asked.texts) if key_of(text) not in keys]
    texts = list(dict.fromkeys([*training, *(text for pairs, _ in sets.values() for pair in pairs for text in pair)]))
    for name, opener in readouts(asked.encoders, asked.untrained):
        if name in rows.get("done", []):
            continue
        began, encoder = time.process_time(), opener()
        for layer, vectors in by_layer(encoder, texts, asked.layers):
            rows[f"{name}, layer {layer}"] = scored(dict(zip(texts, vectors, strict=True)), training, sets)
        rows.setdefault("done", []).append(name)
        print(f"{name}: {time.process_time() - began:.0f} CPU seconds", flush=True)
        names = [text.partition("=")[0] for text in asked.encoders]
        words = [*names, "--untrained", *(Path(text).name for text in asked.untrained), "--layers", *asked.layers]
        words += ["--texts", f"{asked.texts}", *(["--pairs", f"{asked.pairs}"] if asked.pairs else [])]
        command = " ".join(["python benchmarks/readouts.py", *words])
        write_page(asked.name, asked.output, rows, setting, command)


def readouts(encoders: Sequence[str], untrained: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield a name of each readout, and a function that opens it."""
    for text in encoders:
        name, _, folder = text.partition("=")
        yield name, partial(open_model, folder)
        opened: Any = open_model(folder)
        if opened.settings.pooling.over == "memory":
            yield f"{name}, text", partial(text_mean, folder)
    for text in untrained:
        name, _, model = text.rpartition("=")
        name = name or Path(model).name
        for pooling in POOLINGS:
            yield f"{name}, {pooling}", partial(open_model, model, pooling=pooling)
        yield f"{name}, memory", partial(Encoder.from_pretrained, model, pooling=Pooling("mean", "memory"), **MEMORY)


def text_mean(folder: str) -> Any:
    """Return an encoder that is read at its text instead of its memory."""
    opened: Any = open_model(folder)
    return opened.with_settings(pooling=Pooling("mean", "text"))


def training_texts(count: int) -> list[str]:
    """Return sentences of paragraphs, and of NLI."""
    data = Path(os.environ["EMBREW_DATA"])
    paragraphs = load(data / "wiki_paragraphs", kind="text", split="valid", sentences=True, min_chars=20, max_chars=200)
    pairs = load(data / "nli_triplets", kind="pairs", shuffle_seed=1, max_rows=count)
    chosen = paragraphs.select(np.linspace(0, len(paragraphs) - 1, min(count, len(paragraphs))).astype(int))
    return list(dict.fromkeys([*chosen["text"], *pairs["query"]]))


def key_of(text: str) -> str:
    """Return the letters and digits of a text, by which it is recognised."""
    return "".join(filter(str.isalnum, text.lower()))


def sts_sets(pairs: int | None) -> dict[str, tuple[list[tuple[str, str]], list[float]]]:
    """Return pairs and scores by set."""
    data, real = Path(os.environ["EMBREW_DATA"]), os.environ.get("REAL")
    sets = {DEV: (data / "STSB", "dev")}
    if real:
        sets |= {name: (Path(real) / name, "test") for name in ("STS12", "STS13", "STS14", "STS15")}
        sets |= {"STS-B": (data / "STSB", "test"), "BIOSSES": (data / "BIOSSES", "test")}
    found = {}
    for name, (path, split) in sets.items():
        rows = load(path, kind="scored", split=split, max_rows=pairs)
        both = list(zip(rows["sentence1"], rows["sentence2"], strict=True))
        found[name] = both, [float(score) for score in rows["score"]]
    return found


@torch.inference_mode()
def by_layer(encoder: Any, texts: Sequence[str], asked: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each layer, from 1, and raw vectors of texts after it, float32 `(texts, dimensions)`."""
    depth = encoder.backbone.num_layers
    layers = range(1, depth + 1) if "all" in asked else sorted({depth if one == "last" else int(one) for one in asked})
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found = np.empty((len(layers), len(texts), encoder.pooled_dimensions), dtype=np.float32)
    for start in range(0, len(order), BATCH):
        chunk = order[start : start + BATCH]
        tokens = encoder.tokenize([texts[i] for i in chunk], max_length=LONGEST)
        if list(layers) == [depth]:
            found[0, chunk] = encoder(tokens).float().numpy()
            continue
        states = encoder.layer_embeddings(tokens, num_layers=max(layers))
        found[:, chunk] = states[[layer - 1 for layer in layers]].float().numpy()
    yield from zip(layers, found, strict=True)


def scored(vectors: Mapping[str, np.ndarray], training: Sequence[str], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores by set, and in it by what is subtracted; and the share of the variance of each component."""
    fitted = fit([np.stack([vectors[text] for text in training])], COMPONENTS)
    trained = np.stack([vectors[text] for text in training]).astype(np.float64) - fitted.mean
    total = float((trained**2).sum())
    shares = [float(((trained @ axis) ** 2).sum()) / total for axis in fitted.components]
    found: dict[str, Any] = {"shares": shares, "scores": {}}
    for name, (pairs, gold) in sets.items():
        sides = [np.stack([vectors[pair[side]] for pair in pairs]).astype(np.float64) for side in (0, 1)]
        found["scores"][name] = {"raw": correlation(sides[0], sides[1], gold)}
        for count in range(COMPONENTS + 1):
            axes = fitted.components[:count]
            rest = [side - fitted.mean - (side - fitted.mean) @ axes.T @ axes for side in sides]
            found["scores"][name][str(count)] = correlation(rest[0], rest[1], gold)
    tests = [scores for name, scores in found["scores"].items() if name != DEV]
    if tests:
        found["scores"][TESTS] = {key: sum(one[key] for one in tests) / len(tests) for key in VARIANTS}
    return found


def correlation(first: np.ndarray, second: np.ndarray, gold: Sequence[float]) -> float:
    """Return 100 × Spearman's correlation of cosines with scores."""
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return 100 * float(spearmanr(cosines, gold).statistic)


def write_page(name: str, folder: Path, rows: Mapping[str, Any], setting: Mapping[str, Any], command: str) -> None:
    """Write the rows: raw, without the mean, and without one to three components too."""
    around = circumstances(command)
    shown = {key: row for key, row in rows.items() if key != "done"}
    columns = [key for key in (DEV, TESTS) if any(key in row["scores"] for row in shown.values())]
    less = {"raw": "raw", "0": "− mean", **{str(count): f"− {count}" for count in range(1, COMPONENTS + 1)}}
    header = ["readout", *(f"{key}: {less[one]}" for key in columns for one in VARIANTS)]
    lines = [
        [label, *(f"{row['scores'][key][one]:.1f}" for key in columns for one in VARIANTS)]
        for label, row in shown.items()
    ]
    page = ["# What a readout hides", "", *origin(around), "", *table([*header], lines)]
    write(name, page, {**around, "setting": setting, "rows": rows}, folder)


if __name__ == "__main__":
    main()
