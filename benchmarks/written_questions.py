"""Written questions as training data: `python benchmarks/written_questions.py WORK --writer MODEL [--teacher MODEL]`.

Of each data set ($EMBREW_DATA: MedQuAD, cranfield, climate_fever; none is SQuAD's, which the writer was trained on),
1,000 passages get two questions each, once. SmolLM2-135M (three seeds) and all-MiniLM-L6-v2 ($MINILM, one seed) are
trained for equally many steps on pairs of the same passages, and scored on real questions: untrained, BM25, first
sentence for the rest of its passage (as adapt without a writer), cloze (a random sentence for the rest), all written
questions, those that pass the filter, these together with first sentences, with a teacher's margins
(all-mpnet-base-v2: $MPNET, or --teacher), the average of what the filtered ones trained and of the untrained model, a
third of the rate, those alone that BM25 finds first, and true pairs. No step, rate or row is chosen by a test. Each
model is also scored on written questions of the test's documents, without a search to choose them: how well such a
test agrees with real questions.

Stopped? The same command resumes. Results go to `results/written-questions.md` and `.json`; with --toy, everything is
tiny and stays in WORK. `--only PART ...` runs parts of data sets, models and rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import RESULTS, circumstances, origin, table, write
from scipy.stats import spearmanr

from embrew import Encoder, average, evaluate, train, write_questions
from embrew.adapting.baselines import score_bm25
from embrew.adapting.preparation.split import FirstSentences
from embrew.adapting.questions.job import Job, can_have_questions, passages_of
from embrew.adapting.questions.rules import check_questions
from embrew.adapting.questions.teacher import with_margins
from embrew.data.beir import Document, read_beir
from embrew.data.documents import split_sentences
from embrew.data.formats import read_file
from embrew.files.writing import write_jsonl
from embrew.ranking import sample_in_order
from embrew.recipe import Recipe, build

COMMAND = "python benchmarks/written_questions.py WORK"
SETS = ("medquad", "cranfield", "climate_fever")
AVERAGED = "filtered, averaged"  # with the untrained model, equal weights
SLOW = "filtered, a third of the rate"
UNION = "filtered, first sentences"  # both, shuffled
FIRST = "filtered, found first"  # those whose passage BM25 ranks first
CAREFUL = (AVERAGED, SLOW, FIRST)  # of MiniLM alone
ROWS = (
    *("untrained", "BM25", "first sentence", "cloze"),
    *("written", "filtered", UNION, *CAREFUL, "filtered, teacher", "true pairs"),
)
SEEDS = {"SmolLM2": (0, 1, 2), "MiniLM": (0,)}
SCORED_IN = {"SmolLM2": "bfloat16", "MiniLM": "float32"}  # each at its fastest on a core that computes in bfloat16
SIZES = {"passages": 1000, "queries": 500, "documents": 2000, "written": 200, "steps": 60, "batch": 32}
TOY = {"passages": 24, "queries": 8, "documents": 40, "written": 8, "steps": 2, "batch": 4}
Pair = dict[str, Any]


def main() -> None:
    """Train and score what is not there, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--writer", required=True)
    parser.add_argument("--teacher", default=os.environ.get("MPNET"))
    parser.add_argument("--only", nargs="+", default=[*SETS, *SEEDS, *ROWS])
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS["SmolLM2"])
    parser.add_argument("--toy", action="store_true", help="tiny sizes on nano, into WORK")
    asked = parser.parse_args()
    sizes = TOY if asked.toy else SIZES
    results = asked.work / "results" if asked.toy else RESULTS
    file = results / "written-questions.json"
    found: dict[str, Any] = json.loads(file.read_text())["found"] if file.is_file() else {}
    for data in (name for name in SETS if _wanted(asked.only, name, SETS)):
        folder = asked.work / data
        if not (folder / "true.jsonl").is_file():
            _prepare(data, folder, sizes)
        pairs = _pairs(folder, asked, sizes)
        for model in (name for name in SEEDS if _wanted(asked.only, name, SEEDS)):
            for row in (name for name in ROWS if _wanted(asked.only, name, ROWS)):
                if (row in ROWS[2:] and row not in pairs) or (row in CAREFUL and model != "MiniLM"):
                    continue  # no teacher, or too few pairs
                for seed in (one for one in SEEDS[model] if one in asked.seeds) if row in ROWS[2:] else (0,):
                    key = f"{data}: {model}, {row}, seed {seed}"
                    if key not in found:
                        found[key] = _row(asked, folder, model, row, pairs.get(row), seed, sizes)
                        _page(found, results)


def _wanted(only: Sequence[str], name: str, names: Sequence[str] | Mapping[str, Any]) -> bool:
    """Whether a part is asked for: named, or none of its kind is."""
    return name in only or not any(other in only for other in names)


# ---- data ----------------------------------------------------------------------------------------------------------


def _prepare(data: str, folder: Path, sizes: Mapping[str, int]) -> None:
    """Write passages with true pairs, and a test of other questions: `docs.jsonl`, `test/`, `true.jsonl`."""
    texts, pairs, corpus, queries, qrels = _read(data, Path(os.environ["EMBREW_DATA"]), random.Random(0), sizes)
    write_jsonl(folder / "docs.jsonl", ({"_id": f"{i}", "text": text} for i, text in enumerate(texts)))
    queries = dict(sample_in_order(list(queries.items()), sizes["queries"], seed=0))
    relevant = {document for query in queries for document in qrels[query]}
    others = sample_in_order(sorted(set(corpus) - relevant), sizes["documents"], seed=0)
    kept = {name: corpus[name] for name in [*sorted(relevant), *others]}
    _write_beir(folder / "test", kept, queries, {query: qrels[query] for query in queries})
    write_jsonl(folder / "true.jsonl", pairs)


def _read(data: str, root: Path, draw: random.Random, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """Return texts to ask about, their true pairs, and corpus, queries and judgements of the test."""
    most = sizes["passages"]
    if data == "climate_fever":
        rows = [record.values for record in read_file(root / "climate_fever_pairs" / "train.jsonl.gz")]
        claims = sorted({row["query"] for row in rows})
        draw.shuffle(claims)
        held = set(claims[: len(claims) // 3])
        trained = [{"query": r["query"], "positive": r["positive"]} for r in rows if r["query"] not in held][:most]
        corpus = {text: text for text in sorted({row["positive"] for row in rows})}
        names = {text: f"d{i}" for i, text in enumerate(corpus)}
        numbers = {claim: f"q{i}" for i, claim in enumerate(sorted(held))}
        qrels: dict[str, dict[str, int]] = {}
        for row in rows:
            if row["query"] in held:
                qrels.setdefault(numbers[row["query"]], {})[names[row["positive"]]] = 1
        texts = list(dict.fromkeys(row["positive"] for row in trained))
        return texts, trained, {names[t]: t for t in corpus}, {numbers[c]: c for c in sorted(held)}, qrels
    name = {"medquad": "medquad_retrieval"}.get(data, data)
    read = read_beir(root / name, "test")
    corpus = {document.id: document.content for document in read.corpus if document.content.strip()}
    qrels = {query: {d: 1 for d, g in grades.items() if g > 0 and d in corpus} for query, grades in read.qrels.items()}
    queries = {query: text for query, text in read.queries.items() if qrels.get(query)}
    if data == "medquad":
        rows = [record.values for record in read_file(root / "medquad_pairs" / "train.jsonl.gz")]
        chosen = sample_in_order(rows, most, seed=0)
        trained = [{"query": row["query"], "positive": row["positive"]} for row in chosen]
        return [row["positive"] for row in trained], trained, corpus, queries, qrels
    shuffled = sorted(queries)
    draw.shuffle(shuffled)
    half = shuffled[: len(shuffled) // 2]
    trained = [{"query": queries[query], "positive": corpus[d]} for query in half for d in sorted(qrels[query])]
    texts = sample_in_order(list(corpus.values()), most, seed=0)
    return texts, trained, corpus, {query: queries[query] for query in shuffled[len(half) :]}, qrels


def _write_beir(folder: Path, corpus: Mapping[str, str], queries: Mapping[str, str], qrels: Mapping[str, Any]) -> None:
    write_jsonl(folder / "corpus.jsonl", ({"_id": name, "title": "", "text": text} for name, text in corpus.items()))
    write_jsonl(folder / "queries.jsonl", ({"_id": name, "text": text} for name, text in queries.items()))
    (folder / "qrels").mkdir(exist_ok=True)
    lines = [f"{query}\t{document}\t1" for query, documents in qrels.items() for document in documents]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")


def _pairs(folder: Path, asked: Any, sizes: Mapping[str, int]) -> dict[str, Path]:
    """Return the file of pairs of each row, of the same passages; written questions are written once."""
    files = {name: folder / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl" for name in ROWS[2:]}
    files |= {"true pairs": folder / "true.jsonl", AVERAGED: files["filtered"], SLOW: files["filtered"]}
    if not files["filtered"].is_file():
        given: dict[str, Any] = {"writer": asked.writer, "max_passages": sizes["passages"]}
        write_questions(folder / "docs.jsonl", files["filtered"], **given)
    passages = {passage.id: passage for passage in passages_of(folder / "docs.jsonl", max_chars=600)}
    checked = [record.values for record in read_file(folder / "filtered.checked.jsonl")]
    if not files["written"].is_file():
        rows = [row for row in checked if row["reason"] != "empty"]
        write_jsonl(files["written"], (_pair(row["query"], passages[row["passage"]].content) for row in rows))
    if not files[FIRST].is_file():
        rows = [row for row in checked if row["kept"] and row["rank"] == 1]
        write_jsonl(files[FIRST], (_pair(row["query"], passages[row["passage"]].content) for row in rows))
    asked_about = [passages[name] for name in dict.fromkeys(row["passage"] for row in checked)]
    if not files["cloze"].is_file():
        firsts = FirstSentences()(asked_about)
        write_jsonl(files["first sentence"], (_pair(pair.question, pair.answer) for pair in firsts))
        write_jsonl(files["cloze"], _cloze(asked_about))
    if not files[UNION].is_file():
        rows = [record.values for name in ("first sentence", "filtered") for record in read_file(files[name])]
        write_jsonl(files[UNION], (_pair(row["query"], row["positive"]) for row in rows))
    if asked.teacher and not files["filtered, teacher"].is_file():
        rows = [record.values for record in read_file(files["filtered"])]
        texts = [passage.content for passage in asked_about]
        write_jsonl(files["filtered, teacher"], with_margins(rows, texts, asked.teacher))
    if not (folder / "test-written").is_dir():
        _write_test(folder, asked.writer, sizes)
    enough = sizes["batch"]  # climate_fever's passages have one sentence each
    return {name: file for name, file in files.items() if file.is_file() and len(list(read_file(file))) >= enough}


def _cloze(passages: Sequence[Document]) -> Iterator[Pair]:
    """Yield a random sentence of each passage, and the others."""
    draw = random.Random(0)
    for passage in passages:
        sentences = split_sentences(passage.text)
        if len(sentences) > 1:
            number = draw.randrange(len(sentences))
            yield _pair(sentences[number], " ".join(sentences[:number] + sentences[number + 1 :]))


def _pair(query: str, positive: str) -> Pair:
    return {"query": query, "positive": positive}


def _write_test(folder: Path, writer: str, sizes: Mapping[str, int]) -> None:
    """Write a test of written questions, one of each of some relevant documents, over the corpus of the real test."""
    real = read_beir(folder / "test", "test")
    relevant = {document for grades in real.qrels.values() for document in grades}
    able = [document for document in real.corpus if document.id in relevant and can_have_questions(document)]
    chosen = [Document(d.id, d.content[:600], "") for d in sample_in_order(able, sizes["written"], seed=0)]
    written, _ = Job(base=folder / "test-questions", writer=writer, per_passage=1, seed=0).write(chosen)
    kept = [q for q in check_questions([d.content for d in chosen], written, None) if q.reason is None]
    queries = {f"w{i}": question.text for i, question in enumerate(kept)}
    qrels = {f"w{i}": [chosen[question.passage].id] for i, question in enumerate(kept)}
    _write_beir(folder / "test-written", {d.id: d.content for d in real.corpus}, queries, qrels)


# ---- rows ----------------------------------------------------------------------------------------------------------


def _recipe(model: str, row: str, pairs: Path | None, seed: int, sizes: Mapping[str, int], *, toy: bool) -> Recipe:
    """Return the recipe of a row: contrast for a fixed number of steps, as of adapt."""
    values = Recipe.load("baselines/contrastive-smollm2").model_dump(mode="json", exclude_unset=True)["encoder"]
    training: dict[str, Any] = {"learning_rate": 8.0e-4}
    if model == "MiniLM":
        values = Recipe.load("baselines/all-minilm-l6-v2").model_dump(mode="json", exclude_unset=True)["encoder"]
        values |= {"model": os.path.expandvars("$MINILM"), "lora": None}
        training = {"learning_rate": 5.0e-5 / 3 if row == SLOW else 5.0e-5}
    if toy and model == "SmolLM2":
        values["model"] = "nano"
    objective = {
        "type": "contrastive",
        "positives": "column",
        "temperature": 0.05,
        "distillation_weight": float("teacher" in row),
    }
    steps = sizes["steps"]
    stage = {
        "name": "contrast",
        "objective": objective,
        "data": {"path": str(pairs), "shuffle_seed": seed},
        "batch": {"size": sizes["batch"]},
        "training": {**training, "max_steps": steps, "warmup_steps": steps // 10},
    }
    return Recipe.from_values({"encoder": values, "stages": [stage] if pairs else [], "seed": seed})


def _row(
    asked: Any, folder: Path, model: str, row: str, pairs: Path | None, seed: int, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Train one row; return nDCG@10 on real and on written questions."""
    name = f"{model}-{row.replace(', ', '-').replace(' ', '-')}-{seed}"
    tests = {"real": folder / "test", "written": folder / "test-written"}
    scores = {}
    if row == "BM25":
        scores = {
            kind: score_bm25(test, "test", folder / "scores" / name / kind).main_score for kind, test in tests.items()
        }
    else:
        recipe = _recipe(model, row, pairs, seed, sizes, toy=asked.toy)
        run = folder / "runs" / name
        if row == AVERAGED:
            encoder = _averaged(recipe, run)
        elif pairs is not None:
            train(recipe, run, resume=run.exists(), verify="off")
            encoder = Encoder.from_pretrained(run, dtype=SCORED_IN[model])
        else:
            untrained = recipe.encoder.model_copy(update={"dtype": SCORED_IN[model]})
            encoder = build.encoder(recipe.model_copy(update={"encoder": untrained}))
        scores = _scores(encoder, tests, folder / "test-both")
    count = None if pairs is None else sum(1 for _ in read_file(pairs))
    about = {"pairs": count, "writer": Path(asked.writer).name, "scored_in": SCORED_IN[model]}
    return {"ndcg_at_10": scores, **about, "made": circumstances(COMMAND)}


def _scores(encoder: Encoder, tests: Mapping[str, Path], both: Path) -> dict[str, float]:
    """Return nDCG@10 of both tests, whose corpus is one and is encoded once."""
    if not both.is_dir():
        read = {kind: read_beir(test, "test") for kind, test in tests.items()}
        queries = {f"{kind} {name}": text for kind, test in read.items() for name, text in test.queries.items()}
        qrels = {f"{kind} {name}": grades for kind, test in read.items() for name, grades in test.qrels.items()}
        _write_beir(both, {d.id: d.content for d in read["real"].corpus}, queries, qrels)
    examples = evaluate(encoder, [both], split="test")[0].examples
    of: dict[str, list[float]] = {kind: [] for kind in tests}
    for query, score in zip(examples["query"], examples["score"], strict=True):
        of[query.partition(" ")[0]].append(score)
    return {kind: statistics.fmean(several) for kind, several in of.items()}


def _averaged(recipe: Recipe, target: Path) -> Encoder:
    """Write the average of the untrained model and of what the filtered questions made of it."""
    start = target.with_name(f"{target.name}-start")
    if not start.exists():
        untrained = recipe.model_copy(update={"stages": []})
        build.encoder(untrained).save_pretrained(start, verify="off")
    trained = target.with_name(target.name.replace(AVERAGED.replace(", ", "-"), "filtered"))
    return average([start, trained], target, verify="off", overwrite=target.exists())


def _page(found: Mapping[str, Any], results: Path) -> None:
    """Write the tables: scores on real questions, the share of the gap that is closed, agreement of the tests."""
    scores: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for key, one in found.items():
        data, _, rest = key.partition(": ")
        model, row = rest.rpartition(", seed")[0].split(", ", 1)
        scores.setdefault((data, model, row), []).append(one["ndcg_at_10"])
    lines = [
        "# Written questions",
        "",
        "nDCG@10 × 100 on real questions; mean of the seeds ± their standard deviation.",
        "",
    ]
    cells = []
    for model in SEEDS:
        for row in ROWS:
            of = [scores.get((data, model, row)) for data in SETS]
            cells.append([model, row, *(_cell(one) for one in of)])
        gaps = [_gap(scores, data, model) for data in SETS]
        cells.append([model, "share of the gap closed by filtered", *gaps])
    lines += [
        *table(["model", "row", *SETS], cells),
        "",
        "Spearman's correlation of written and real tests over rows:",
        "",
    ]
    for data in SETS:
        rows = [
            {k: statistics.mean(s[k] for s in several) for k in s0}
            for (d, *_), several in scores.items()
            if d == data
            for s0 in several[:1]
        ]
        rho = (
            spearmanr(*([row[kind] for row in rows] for kind in ("real", "written"))).statistic
            if len(rows) > 2
            else None
        )
        lines.append(f"- {data}: {'–' if rho is None else f'{rho:.2f}'} ({len(rows)} rows)")
    lines += [
        "",
        f"writer: {', '.join(sorted({one['writer'] for one in found.values()}))}",
        "",
        *origin(list(found.values())[-1]["made"]),
    ]
    by_row: dict[str, dict[str, list[float]]] = {}  # what tables of the documentation show
    for (data, model, row), several in scores.items():
        by_row.setdefault(row, {})[f"{model}, {data}"] = [one["real"] for one in several]
    write("written-questions", lines, {"found": dict(found), "scores": by_row}, results)


def _cell(several: Sequence[Mapping[str, float]] | None) -> str:
    values = [100 * one["real"] for one in several or ()]
    if not values:
        return "–"
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def _gap(scores: Mapping[tuple[str, str, str], Sequence[Mapping[str, float]]], data: str, model: str) -> str:
    """Return (filtered − untrained) ÷ (true pairs − untrained)."""
    try:
        low, value, high = (
            statistics.mean(one["real"] for one in scores[data, model, row])
            for row in ("untrained", "filtered", "true pairs")
        )
    except KeyError:
        return "–"
    return f"{(value - low) / (high - low):.0%}" if high > low else "–"


if __name__ == "__main__":
    main()
