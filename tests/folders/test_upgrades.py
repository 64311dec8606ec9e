"""Folders that earlier versions wrote open in this one, and give what they gave.

`b78cf87/` was made by the source of that commit, `joined/` by a later one (`make.py`). They are never made again: where
a test here fails, users' folders would break. Change the code so that it reads them. Where that is not possible, the
folder must be refused with a sentence that says what to do (as `lost` and `domain` are), and
`docs/reference/formats.md` and `CHANGELOG.md` must say so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew import build
from embrew.analysis.dev_uniformity import evaluation_of
from embrew.comparison import read_folder
from embrew.corpus import encode_corpus, read_vectors
from embrew.data.documents import read_documents
from embrew.domain.prepare import prepare
from embrew.evaluation import evaluate
from embrew.modeling.encoder import Encoder
from embrew.modeling.merging import merge_encoder
from embrew.recipe import Recipe
from embrew.search import SearchIndex
from embrew.sweep import read_sweep, run_sweep
from embrew.text_encoder import provenance
from embrew.training.stages import train
from embrew.training.trainer import StageTrainer
from tests.folders.conftest import Folders

ENCODERS = ("lora", "full", "latent", "contexts", "nano", "templates")


def check_encoder(folders: Folders, name: str) -> Encoder:
    """Open an encoder's folder; compare vectors, token ids, steps and hash with those of the version that wrote it."""
    expected = folders.expected[name]
    opened = Encoder.from_pretrained(name, dtype="float32", device="cpu")
    texts = folders.expected["texts"]
    for call, options in expected["calls"].items():
        vectors = np.asarray(opened.encode(texts, **options))
        assert np.abs(vectors - folders.arrays[f"{name}:{call}"]).max() < 1e-6, call
    how: Any = {"instruction": opened.prompts["query"], "max_length": opened.max_length["query"]}
    assert [[row.ids for row in template.rows(texts, **how)] for template in opened.templates] == expected["ids"]
    assert opened.steps == expected["steps"]
    return opened


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_opens_with_the_same_vectors(name: str, old: Folders, tmp_path: Path) -> None:
    """Also after it is saved by this version."""
    folder = f"encoders/{name}"
    assert {path.name for path in Path("encoders").iterdir()} == {*ENCODERS, "memory"}
    opened = check_encoder(old, folder)
    if name == "nano":  # as the others, and takes longer
        return
    again = tmp_path / "again"
    opened.save_pretrained(again)
    texts = old.expected["texts"]
    vectors = Encoder.from_pretrained(again, device="cpu").encode(texts, prompt_name="query")
    assert np.abs(vectors - old.arrays[f"{folder}:query"]).max() < 1e-6


@pytest.mark.usefixtures("old")
def test_an_encoder_with_a_ratio_that_counted_more_is_refused() -> None:
    with pytest.raises(
        ValueError, match="has memory_ratio and format 1, of an earlier embrew, .* train the encoder again"
    ):
        Encoder.from_pretrained("encoders/memory")


def test_an_adapter_is_merged(old: Folders, tmp_path: Path) -> None:
    merged = merge_encoder("encoders/lora", tmp_path / "merged", verify="fast")
    vectors = merged.encode(old.expected["texts"], prompt_name="query")
    assert np.abs(vectors - old.arrays["encoders/lora:query"]).max() < 1e-5


def test_a_run_that_was_killed_resumes(old: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its second stage, from the checkpoint: the first is skipped, and the end is that of the version that began."""
    whole_step, steps = StageTrainer.training_step, []

    def training_step(self: StageTrainer, *args: Any, **kwargs: Any) -> Any:
        steps.append(self.state.global_step)
        return whole_step(self, *args, **kwargs)

    monkeypatch.setattr(StageTrainer, "training_step", training_step)
    check_encoder(old, "run/compress")
    before = {path: path.read_bytes() for path in Path("run/compress").rglob("*") if path.is_file()}
    recipe = Recipe.load("run.yaml")
    train(recipe, "run", resume=True, evaluate=evaluation_of(recipe))
    assert steps == [4, 5], "of six; from the checkpoint on"
    assert {path: path.read_bytes() for path in before} == before, "finished, so it is left alone"
    opened = Encoder.from_pretrained("run", dtype="float32", device="cpu")
    for call, options in old.expected["finished/supervised"]["calls"].items():
        vectors = np.asarray(opened.encode(old.expected["texts"], **options))
        assert np.abs(vectors - old.arrays[f"finished/supervised:{call}"]).max() < 1e-5, call
    assert (
        opened.steps
        == old.expected["finished/supervised"]["steps"]
        == 4 + old.expected["finished"]["kept"]["supervised"]
    )
    log, wanted = json.loads(Path("run/run.json").read_text()), old.expected["finished"]
    assert {key: log[key] for key in ("kept", "samples", "final")} == {
        key: wanted[key] for key in ("kept", "samples", "final")
    }
    for name, scores in wanted["scores"].items():
        # vectors are equal to 1e-5 (above); one swap of neighbouring ranks of the few pairs moves the score by 0.0044
        assert log["scores"][name] == pytest.approx(scores, abs=5e-3), name
    assert [point["step"] for point in log["curves"]["supervised"]] == [2, 4, 6]
    assert sorted(path.name for path in Path("run").iterdir()) == ["compress", "run.json", "supervised"]


@pytest.mark.slow
def test_a_run_is_begun_from(old: Folders) -> None:
    """`train --from` takes an old run."""
    recipe = Recipe.load("lost.yaml", ["stages.supervised.training.max_steps=1"])
    trained = train(recipe, "then", start="whole")
    assert trained.steps == 4 and np.isfinite(trained.encode(old.expected["texts"])).all()


def test_an_adapter_that_was_saved_without_the_weights_under_it_is_refused(old: Folders) -> None:
    recipe = Recipe.load("lost.yaml")
    with pytest.raises(ValueError, match="saved by an earlier embrew, without the fully trained weights"):
        train(recipe, "lost", resume=True, start="whole")


def test_an_export_opens_in_plain_sentence_transformers(old: Folders) -> None:
    from sentence_transformers import SentenceTransformer

    opened = SentenceTransformer("export", device="cpu")
    for side in ("query", "document"):
        vectors = getattr(opened, f"encode_{side}")(old.expected["texts"])
        assert np.abs(vectors - old.arrays[f"export:{side}"]).max() < 1e-6
        assert np.abs(vectors[:7] - old.arrays[f"encoders/lora:{side}"][:7]).max() < 1e-6  # within its length
    ours: Any = build.open_model("export")
    assert np.abs(ours.encode_query(old.expected["texts"]) - old.arrays["export:query"]).max() < 1e-6


@pytest.mark.parametrize(("name", "options"), [("float32", {}), ("int8", {}), ("binary", {"truncate_dim": 8})])
def test_shards_are_read_and_continued(name: str, options: dict[str, Any], old: Folders) -> None:
    """Complete ones are read and left alone; stopped ones become what the version that began them made of them."""
    expected = old.arrays[f"shards/{name}"]
    codes = [part for _, part in read_vectors(f"shards/{name}")]
    assert np.array_equal(np.concatenate(codes), expected)
    encoder, job = build.open_model("encoders/lora"), {"precision": name, "shard_rows": 8, **options}
    summary = encode_corpus(encoder, "data/corpus.jsonl", f"shards/{name}", **job)
    assert (summary.rows, summary.shards, summary.kept) == (22, 3, 3)
    if name == "binary":
        return
    with pytest.raises(ValueError, match="is not complete"):
        read_vectors(f"shards/{name}-stopped")
    summary = encode_corpus(encoder, "data/corpus.jsonl", f"shards/{name}-stopped", **job)
    assert (summary.rows, summary.shards, summary.kept) == (22, 3, 1)
    codes = [part for _, part in read_vectors(f"shards/{name}-stopped")]
    assert np.abs(np.concatenate(codes).astype(np.float32) - expected).max() <= (1 if name == "int8" else 1e-6)


def check_index(folders: Folders, encoder: str) -> None:
    """Search an index with the encoder that made it; compare with the hits it gave."""
    index = SearchIndex.load("index", build.open_model(encoder))
    assert index.documents == read_documents("data/corpus.jsonl")
    found = index.search(folders.expected["texts"][:3], top_k=4)
    for hits, wanted in zip(found, folders.expected["hits"], strict=True):
        assert [hit.document.id for hit in hits] == [name for name, _ in wanted]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in wanted], abs=1e-5)


def test_an_index_is_searched(old: Folders) -> None:
    check_index(old, "encoders/lora")


def test_results_are_read_and_kept(old: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in a table, and are not computed again by the versions of Python and libraries that made them."""
    (run,) = Path("results").glob("*.run.json")
    monkeypatch.setattr(provenance, "versions", lambda: json.loads(run.read_text())["versions"])
    before = {path: path.stat().st_mtime_ns for path in Path("results").iterdir()}
    (result,) = evaluate(build.open_model("encoders/lora"), ["data/sts.jsonl"], output_dir="results")
    assert {path: path.stat().st_mtime_ns for path in Path("results").iterdir()} == before
    (scores,) = old.expected["results"]["test"]
    assert result.main_score == scores["main_score"]
    ((read, _),) = read_folder("results")
    assert read == result
    (fresh,) = evaluate(build.open_model("encoders/lora"), ["data/sts.jsonl"])
    # Pearson's: pairs of the file have equal cosines, whose ranks, and with them Spearman's, are up to rounding
    pearson = [found.scores["cosine_pearson"] for found in (fresh, result)]
    assert pearson[0] == pytest.approx(pearson[1], abs=1e-4)


@pytest.mark.slow
def test_a_finished_sweep_has_nothing_left_to_train(old: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageTrainer, "fit", lambda *_: pytest.fail("nothing is left to train"))
    rows = read_sweep("sweep.yaml", "whole.yaml", ["encoder.lora={r: 1, lora_alpha: 2}"])
    run_sweep(rows, "sweep", resume=True)
    written = json.loads(Path("sweep/sweep.json").read_text())["rows"]
    assert [row["scores"] for row in written] == old.expected["sweep"]


@pytest.mark.usefixtures("old")
def test_prepared_data_of_a_domain_is_refused() -> None:
    with pytest.raises(
        ValueError, match="manifest.json has format 1, of an earlier embrew; this embrew reads format 3"
    ):
        prepare("data/docs", "data/qa.jsonl", Path("domain"))


def test_format_2(joined: Folders) -> None:
    """Words joined with the text, and an index that has options of its own."""
    assert json.loads(Path("encoders/joined/embrew.json").read_text())["format"] == 2
    assert json.loads(Path("index/manifest.json").read_text())["format"] == 2
    check_encoder(joined, "encoders/joined")
    check_index(joined, "encoders/joined")


def test_fixtures_hold_no_path_of_a_machine() -> None:
    """The folders are read as any user's; the one that wrote them is not part of them."""
    here = Path(__file__).parent
    files = [path for name in ("b78cf87", "joined") for path in (here / name).rglob("*") if path.is_file()]
    assert len(files) > 150
    words = [b"/tmp/", b"/home/", str(Path.home()).encode(), str(here.parents[2]).encode()]
    for path in files:
        content = path.read_bytes()
        assert not any(word in content for word in words), path
