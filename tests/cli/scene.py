"""A folder with all kinds of files that verbs read, and ways to damage one of them."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
from tests.conftest import SENTENCES, stir

PAIRS = [{"query": f"question {i}", "positive": f"answer {i}"} for i in range(6)]
STS = [{"sentence1": a, "sentence2": b, "score": i} for i, (a, b) in enumerate(pairwise(SENTENCES))]
RECIPE = """
encoder: {model: model, template: "{text}", pooling: {mode: mean}, attention: causal, lora: {r: 4}}
stages:
  - name: one
    objective: {type: contrastive}
    data: {path: pairs.jsonl}
    batch: {size: 4}
    training: {max_steps: 1, use_cpu: true}
"""


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 - 5])


def noise(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(300))


def no_keys(path: Path) -> None:
    path.write_text("{}\n")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = {one.__name__: one for one in (truncated, noise, no_keys, folder)}


@contextmanager
def damaged(path: Path, how: str) -> Iterator[None]:
    """Damage a file for the time of a block."""
    kept = path.read_bytes()
    path.unlink()  # weights may be linked with those of another folder
    path.write_bytes(kept)
    try:
        DAMAGES[how](path)
        yield
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(kept)


def ask(place: Path, *arguments: str) -> Any:
    """Run a verb in this process; relative names are below `place`. What it writes under `out` is removed."""
    with chdir(place):
        try:
            return CliRunner().invoke(app, [*arguments])
        finally:
            for name in ("out", "encoder/contexts/other"):
                shutil.rmtree(name, ignore_errors=True)


def write_small(place: Path, model: Path) -> None:
    """An encoder with a context, a run with it, results, and data."""
    shutil.copytree(model, place / "model")
    settings: dict[str, Any] = {"template": "{instruction}{text}{memory}", "pooling": Pooling("mean", "memory")}
    settings["demonstrations"] = Demonstrations(compress="none")
    encoder = Encoder.from_pretrained(place / "model", memory_tokens=2, attention="causal", **settings)
    encoder.max_length.update(query=32, document=32)
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone)
    encoder.add_context("task", Context("Find: ", (Demonstration("a", "b"),)))
    encoder.save_pretrained(place / "encoder", verify="off")
    unverified(place)
    shutil.copytree(place / "encoder", place / "run" / "one")
    moments = [{"step": 1, "scores": {"dev": 0.5}}]
    log: dict[str, Any] = {"format": 2, "stages": ["one"], "final": "one"}
    log |= {"scores": {"base": {"dev": 0.1}, "one": {"dev": 0.5}}, "seconds": {}}
    log |= {"curves": {"one": moments}, "sets": {}}
    log |= {"samples": {"one": {"a_step": 4, "an_epoch": 8, "steps": 1}}}
    (place / "run" / "run.json").write_text(json.dumps(log))
    write_data(place)
    write_results(place)


def write_rest(place: Path) -> None:
    """Whole weights, an encoder without an adapter, an export and an index."""
    encoder = Encoder.from_pretrained(place / "encoder", merge_adapter=True)
    encoder.contexts, encoder.merged_adapters = {}, []
    encoder.backbone.train_all()
    encoder.save_pretrained(place / "merged", verify="off")
    plain = Encoder.from_pretrained(place / "model", template="{text}", pooling="mean", attention="causal")
    plain.save_pretrained(place / "plain", verify="off")
    for arguments in (
        ("export", "plain", "export", "--verify", "off"),
        ("search", "plain", "a question", "--index", "index", "--build", "beir/corpus.jsonl"),
    ):
        done = ask(place, *arguments)
        assert done.exit_code == 0, done.output
    unverified(place)


def unverified(place: Path) -> None:
    """Remove what would notice damage before any parser does."""
    for path in place.rglob("checksums.json"):
        path.unlink()


def write_data(place: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def lines(rows: list[dict[str, Any]]) -> str:
        return "".join(json.dumps(row) + "\n" for row in rows)

    (place / "pairs.jsonl").write_text(lines(PAIRS))
    (place / "sts.jsonl.gz").write_bytes(gzip.compress(lines(STS).encode(), mtime=0))
    pq.write_table(pa.table({"text": SENTENCES * 10}), place / "texts.parquet")
    (place / "demos.json").write_text(json.dumps([{"query": "a", "response": "b"}]))
    (place / "demos.csv").write_text("query,response\na,b\n")
    (place / "recipe.yaml").write_text(RECIPE)
    (place / "suite.yaml").write_text("tasks: [{data: sts.jsonl.gz, kind: sts}]\n")
    (place / "beir" / "qrels").mkdir(parents=True)
    (place / "beir" / "corpus.jsonl").write_text(lines([{"_id": str(i), "text": t} for i, t in enumerate(SENTENCES)]))
    (place / "beir" / "queries.jsonl").write_text(lines([{"_id": "q", "text": "which?"}]))
    (place / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    (place / "docs").mkdir()
    for i in range(3):
        (place / "docs" / f"{i}.md").write_text(" ".join(SENTENCES[i : i + 3]))  # a question and its answer
    (place / "made" / "data").mkdir(parents=True)
    (place / "made" / "data" / "manifest.json").write_text("{}")


def write_results(place: Path) -> None:
    run = {"format": 2, "task": "sts", "split": "test", "kind": "sts", "dataset_revision": None, "counts": {"pairs": 2}}
    entry = {"main_score": 0.5, "spearman": 0.5}
    result = {"task_name": "sts", "scores": {"test": [entry]}, "evaluation_time": 1.0}
    for name in ("results", "results-2"):
        (place / name).mkdir()
        (place / name / "sts.test.json").write_text(json.dumps(result))
        (place / name / "sts.test.run.json").write_text(json.dumps(run))
        (place / name / "sts.test.examples.json").write_text(json.dumps({"predicted": [1, 2], "gold": [1, 2]}))
