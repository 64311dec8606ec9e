"""Which encoder suits which texts: `python benchmarks/best_encoder.py WORK [DOMAIN ...] [--seeds 1 2 3]`.

Five domains of $EMBREW_DATA. On each, `embrew adapt` races all-MiniLM-L6-v2 ($MINILM) and SmolLM2-135M with every seed,
and all-mpnet-base-v2 ($MPNET) and Gemma 3 270M ($GEMMA) with the first, where their folders are named. Beside them
Sentence-Transformers' usual recipe trains the ready models on the same pairs for as long: in-batch negatives
(MultipleNegativesRankingLoss), its evaluator on dev, the best of three learning rates on dev, each for a third of the
minutes. All are scored on the same test by the same code.

Stopped? The same command resumes, and leaves out races whose results are there. Results go to `results/best-encoder.md`
and `.json`, which several commands may write (one per domain, say); WORK keeps what was made.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from harness import RESULTS, circumstances, origin, table, write

from embrew import adapt
from embrew.analysis.plots import drawing
from embrew.data.beir import read_beir
from embrew.data.formats import read_file
from embrew.evaluation import Result, evaluate
from embrew.evaluation.uncertainty import compare
from embrew.plot_style import CYCLE
from embrew.report import read_folder
from embrew.stock import open_stock

COMMAND = "python benchmarks/best_encoder.py WORK"
ROWS = {"max_rows": 3000, "shuffle_seed": 1}
DOMAINS: dict[str, dict[str, Any]] = {
    "medquad": {"path": "$EMBREW_DATA/medquad_pairs", **ROWS},
    "glossary": {"path": "$EMBREW_DATA/openstax_glossary_pairs", **ROWS},
    "climate": {"path": "$EMBREW_DATA/climate_fever_pairs", **ROWS},
    "wikinews": {"path": "$EMBREW_DATA/wikinews_title_body_pairs", **ROWS},
    "squad": {"path": "$EMBREW_DATA/squad_sentence_triplets", **ROWS},  # MiniLM's card lists SQuAD as training data
}
READY = {"MiniLM": "$MINILM", "mpnet": "$MPNET"}
BARE = {"SmolLM2": "smollm2-135m", "Gemma": "$GEMMA"}
ONCE = ("mpnet", "Gemma")  # with the first seed only
RATES = (2e-5, 1e-4, 3e-4)
EVALUATIONS = 5
PEER = "Sentence-Transformers' recipe"


def main() -> None:
    """Race and train what is not there, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("domains", nargs="*", default=list(DOMAINS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=15.0)
    asked = parser.parse_args()
    for seed in asked.seeds:
        for domain in asked.domains:
            place, key = asked.work / f"{domain}-{seed}", f"{domain}, seed {seed}"
            models = {name: model for name, model in _models().items() if name not in ONCE or seed == 1}
            if models.keys() <= set(_found().get(key, {}).get("raced", ())):
                continue
            report = adapt(
                list(models.values()),
                output=place,
                pairs=DOMAINS[domain],
                minutes=asked.minutes,
                seed=seed,
                export=False,
            )
            rows = {row["model"]: row for row in report["models"]}
            for name in models.keys() & READY.keys():
                peer, start = trained_by_peer(models[name], place, asked.minutes, seed), Path(models[name]).name
                (before,), (after,) = (
                    read_folder(place / rows[row]["results"]) for row in (start, f"{start}, trained")
                )
                rows[f"{start}, {PEER}"] = {
                    "test_ndcg_at_10": peer.scores["ndcg_at_10"],
                    "embrew_above": _difference(peer, after),
                    "embrew_above_start": _difference(before, after),
                }
            made = {"rows": rows, "best": report["best"], "said": report["advice"], "raced": list(models)}
            page(_found() | {key: {**made, "minutes": asked.minutes, "made": circumstances(COMMAND)}})


def _found() -> dict[str, Any]:
    """Return the results that are there."""
    file = RESULTS / "best-encoder.json"
    return json.loads(file.read_text())["found"] if file.is_file() else {}


def _models() -> dict[str, str]:
    """Return the models whose folders are named."""
    named = {name: os.path.expandvars(model) for name, model in {**READY, **BARE}.items()}
    return {name: model for name, model in named.items() if "$" not in model}


def trained_by_peer(model: str, place: Path, minutes: float, seed: int) -> Result:
    """Train with Sentence-Transformers alone; return the test result of the rate that was the best on dev."""
    results = place / "peer" / Path(model).name
    if not (results / "chosen.json").is_file():
        scored = {rate: _peer_run(model, place, minutes / len(RATES), seed, rate, results) for rate in RATES}
        best = max(scored, key=lambda rate: scored[rate])
        shutil.copytree(results / f"{best:g}" / "test", results / "test", dirs_exist_ok=True)
        (results / "chosen.json").write_text(json.dumps({"dev": {f"{rate:g}": scored[rate] for rate in RATES}}))
    (result,) = read_folder(results / "test")
    return result


def _peer_run(model: str, place: Path, minutes: float, seed: int, rate: float, results: Path) -> float:
    """Train with one rate; return the best score on dev, whose model is scored on the test."""
    done = results / f"{rate:g}" / "dev.json"
    if done.is_file():
        return float(json.loads(done.read_text()))
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )
    from sentence_transformers.training_args import BatchSamplers
    from transformers import TrainerCallback

    encoder = open_stock(model)
    rows = [record.values for record in read_file(place / "data" / "pairs.jsonl")]
    data = Dataset.from_list([{"anchor": row["query"], "positive": row["positive"]} for row in rows])
    scratch = results / f"{rate:g}" / "run"
    best: dict[str, Any] = {"dev": _dev_score(encoder, place), "state": None}

    class Timed(TrainerCallback):
        """Score on dev after equal parts of the time, keep the best weights, and stop at its end."""

        def __init__(self) -> None:
            self.began, self.evaluated = time.perf_counter(), 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            spent = (time.perf_counter() - self.began) / (60 * minutes)
            if spent * EVALUATIONS >= self.evaluated + 1 or state.global_step >= state.max_steps:
                self.evaluated += 1
                if (score := _dev_score(encoder, place)) > best["dev"]:
                    best.update(dev=score, state={k: v.detach().clone() for k, v in encoder.state_dict().items()})
            control.should_training_stop = spent >= 1
            return control

    steps = max(1, int(len(data) * 5 / 32))
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(scratch),
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=rate,
        warmup_ratio=0.1,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        save_strategy="no",
        report_to="none",
        seed=seed,
        use_cpu=True,
    )
    SentenceTransformerTrainer(
        model=encoder,
        args=arguments,
        train_dataset=data,
        loss=losses.MultipleNegativesRankingLoss(encoder),
        callbacks=[Timed()],
    ).train()
    if best["state"] is not None:
        encoder.load_state_dict(best["state"])
    else:
        encoder = open_stock(model)
    evaluate(
        encoder, [place / "data" / "test"], output_dir=results / f"{rate:g}" / "test", split="test", overwrite=True
    )
    done.write_text(json.dumps(best["dev"]))
    shutil.rmtree(scratch, ignore_errors=True)
    return float(best["dev"])


def _dev_score(encoder: Any, place: Path) -> float:
    """Return nDCG@10 on dev by Sentence-Transformers' own evaluator."""
    from sentence_transformers.evaluation import InformationRetrievalEvaluator

    dev = read_beir(place / "data" / "dev", "dev")
    relevant = {query: {document for document, grade in of.items() if grade > 0} for query, of in dev.qrels.items()}
    scores = InformationRetrievalEvaluator(
        {query: text for query, text in dev.queries.items() if relevant.get(query)},
        {document.id: document.content for document in dev.corpus},
        relevant,
        ndcg_at_k=[10],
        write_csv=False,
    )(encoder)
    return float(scores["cosine_ndcg@10"])


def _difference(a: Result, b: Result) -> dict[str, float]:
    """Return B minus A on the test, with its interval."""
    tested = compare(a, b)
    assert tested is not None, "retrieval has examples"
    return {"difference": tested.difference, "low": tested.low, "high": tested.high}


def page(found: dict[str, Any]) -> None:
    """Write the table: means over seeds of the test, and how often the named encoder was near the best."""
    scores: dict[str, dict[str, list[float]]] = {}
    for key, one in found.items():
        for name, row in one["rows"].items():
            scores.setdefault(key.partition(",")[0], {}).setdefault(_label(name), []).append(row["test_ndcg_at_10"])
    names = list(dict.fromkeys(name for rows in scores.values() for name in rows))
    cells = []
    for name in names:
        of_domains = (scores[domain].get(name) for domain in scores)
        cells.append([name, *("–" if one is None else f"{100 * statistics.mean(one):.1f}" for one in of_domains)])
    lines = [
        "# The best encoder, by domain",
        "",
        "nDCG@10 × 100 on the test, means over seeds. Where no step was better on dev, a trained row is its start.",
        "",
        *table(["model", *scores], cells),
        "",
        *table(
            [
                "race",
                "named by adapt",
                "its test",
                "best row",
                "its test",
            ],
            [_race(key, one) for key, one in found.items()],
        ),
        "",
        "Trained by embrew, minus its start, and minus Sentence-Transformers' recipe, with 95 % intervals:",
        "",
        *table(
            ["race", "model", "minus its start", "minus Sentence-Transformers' recipe"],
            [row for key, one in found.items() for row in _gains(key, one)],
        ),
        "",
        *origin(list(found.values())[-1]["made"]),
    ]
    write("best-encoder", lines, {"found": found})
    draw(found)


def draw(found: dict[str, Any]) -> None:
    """Draw each model's test score against its time per text, from as it is to trained, one panel per race."""
    with drawing(RESULTS / "best-encoder.svg", 6.4 * min(2, len(found)), 4.0 * math.ceil(len(found) / 2)) as figure:
        panels = list(figure.subplots(math.ceil(len(found) / 2), min(2, len(found)), squeeze=False).flat)
        for empty in panels[len(found) :]:
            empty.remove()
        for axes, (race, outcome) in zip(panels, found.items(), strict=False):
            rows = [row for row in outcome["rows"].values() if row.get("milliseconds") and "BM25" not in row["model"]]
            arrow = {"arrowstyle": "->", "color": CYCLE[0]}
            for start in dict.fromkeys(row["start"] for row in rows):
                before, *after = sorted((row for row in rows if row["start"] == start), key=_is_trained)
                time, score = before["milliseconds"], 100 * before["test_ndcg_at_10"]
                axes.plot(time, score, "o", color=CYCLE[0], markerfacecolor="white")
                for row in after:
                    trained = 100 * row["test_ndcg_at_10"]
                    axes.annotate("", (time, trained), (time, score), arrowprops=arrow)
                    axes.plot(time, trained, "o", color=CYCLE[0])
                    score = max(score, trained)
                axes.annotate(start, (time, score), (8, -3), textcoords="offset points")
            words = 100 * outcome["rows"]["BM25"]["test_ndcg_at_10"]
            axes.axhline(words, color="0.6", linestyle="--")
            axes.annotate("BM25", (0.01, words), (0, 4), ("axes fraction", "data"), textcoords="offset points")
            axes.set(xscale="log", xlabel="ms per text, one core", ylabel="test nDCG@10 × 100", title=race)
            axes.margins(0.4, 0.12)
            ticks = [10, 20, 50, 100, 200, 500, 1000, 2000]
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.set_xticks([], minor=True)


def _is_trained(row: dict[str, Any]) -> bool:
    return row["seconds"] is not None


def _label(name: str) -> str:
    """Return a name without the pooling of an untrained language model, which differs between domains."""
    start, comma, what = name.partition(", ")
    if name.endswith("+ BM25"):
        return "the best + BM25"
    return name if not comma or what in ("trained", PEER) else f"{start}, untrained"


def _race(key: str, one: dict[str, Any]) -> list[str]:
    rows = one["rows"]
    models = {name: row["test_ndcg_at_10"] for name, row in rows.items() if "BM25" not in name}
    best = max(models, key=lambda name: models[name])
    return [key, one["best"], f"{100 * models[one['best']]:.1f}", best, f"{100 * models[best]:.1f}"]


def _gains(key: str, one: dict[str, Any]) -> list[list[str]]:
    of_peers = {name.removesuffix(f", {PEER}"): row for name, row in one["rows"].items() if name.endswith(PEER)}
    said = [
        [f"{100 * a['difference']:+.1f} ({100 * a['low']:+.1f} to {100 * a['high']:+.1f})" for a in differences]
        for row in of_peers.values()
        if (differences := (row["embrew_above_start"], row["embrew_above"]))
    ]
    return [[key, name, *cells] for name, cells in zip(of_peers, said, strict=True)]


if __name__ == "__main__":
    main()
