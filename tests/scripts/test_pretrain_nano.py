"""nano's pretraining: what is read and left out, and resuming with the same result."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import nano_corpus
import pretrain_nano
from docstrings import Package

WORDS = "the a river city moon reads writes old green small house under over paper water light of and to in".split()  # noqa: SIM905


def prose(seed: int, sentences: int = 12) -> str:
    rng = random.Random(seed)
    return " ".join(" ".join(rng.choices(WORDS, k=9)).capitalize() + f" {seed}." for _ in range(sentences))


def write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path) -> Path:
    """The folders the script reads, with a few hundred documents."""
    folder = tmp_path / "data"
    tested = "This very sentence is in a test set."
    rows = [{"text": prose(i), "source": "wikipedia"} for i in range(150)]
    rows += [{"text": "Buy this now, it costs nothing. " * 5, "source": "captions"}]
    rows += [{"text": f"{prose(900)} {tested} {prose(901)}", "source": "wikinews"}]
    rows += [{"text": prose(0), "source": "wikipedia"}, {"text": prose(5000), "source": "wikipedia"}]
    write(folder / "lm_corpus" / "train-00000.jsonl.gz", rows)
    write(folder / "lm_corpus" / "valid.jsonl.gz", [{"text": prose(5000 + i), "source": "novels"} for i in range(12)])
    write(folder / "wiki_paragraphs" / "train-00000.jsonl.gz", [{"text": prose(1000 + i)} for i in range(150)])
    write(folder / "wiki_paragraphs" / "valid.jsonl.gz", [{"text": prose(6000 + i)} for i in range(12)])
    for name in ("STS12", "STS13", "STS14", "STS15", "STSB", "BIOSSES"):
        pairs = [{"sentence1": tested, "sentence2": prose(7000 + i, 1), "score": i % 5 + 0.5} for i in range(6)]
        write(folder / name / "test.jsonl.gz", pairs)
    return folder


def test_the_corpus_leaves_out_what_it_must(data, tmp_path):
    counts = nano_corpus.Counts()
    package = tmp_path / "pkg" / "sklearn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""A sentence that belongs to a package held out by the demonstration."""\n')
    read = list(nano_corpus.read_corpus(data, counts, packages=[Package("sklearn", package, "1")]))
    texts = [text for _, text in read]
    assert {source for source, _ in read} == {"wikipedia", "wikinews", "wiki_paragraphs"}
    assert not any("Buy this now" in text for text in texts)  # a source that is not permitted
    assert not any("very sentence" in text for text in texts)
    assert counts.test_sentences == 1
    assert sum("900" in text and "901" in text for text in texts) == 1  # the rest of its line stays
    assert counts.repeated_lines == 1  # document 0 came twice
    assert counts.validation_lines == 1
    assert prose(5000) not in texts
    assert counts.documents == {"wikipedia": 150, "wikinews": 1, "wiki_paragraphs": 150}
    assert counts.packages_left_out["sklearn"].startswith("held out")


def test_docstrings_of_permissive_packages_are_read(data, tmp_path, monkeypatch):
    body = "def {name}(x):\n    '''Turns an {name} into something that is about three times as long as before.'''\n"
    packages = []
    for name, licence in (("apple", "MIT"), ("banana", "GPL-3.0"), ("cherry", "none stated")):
        path = tmp_path / "site" / name
        path.mkdir(parents=True)
        (path / "__init__.py").write_text(body.format(name=name))
        packages.append((Package(name, path, "1"), licence))
    monkeypatch.setattr(nano_corpus, "licence", lambda package: {p.name: said for p, said in packages}[package.name])
    counts = nano_corpus.Counts()
    read = [text for source, text in nano_corpus.read_corpus(data, counts, packages=[p for p, _ in packages])
            if source == nano_corpus.DOCSTRINGS]  # fmt: skip
    assert len(read) == 1
    assert read[0].startswith("apple(x)\nTurns an apple into")
    assert counts.packages == {"apple": "MIT"}
    assert counts.packages_left_out == {"banana": "GPL-3.0", "cherry": "none stated"}


@pytest.fixture
def run(data, monkeypatch):
    """Runs the script with a tiny model and no packages."""
    monkeypatch.setattr(nano_corpus, "installed_packages", list)
    monkeypatch.setattr(pretrain_nano, "VOCABULARY", 400)

    def main(out: Path, *options: str) -> Path:
        sizes = ["--hidden", "64", "--layers", "1", "--batch-tokens", "1024", "--tokens", "12288", "--warmup", "2"]
        speed = ["--precision", "fp32", "--no-compile", "--device", "cpu", "--evaluate-steps", "6"]
        monkeypatch.setattr(sys, "argv", ["x", "--data", str(data), "--out", str(out), *sizes, *speed, *options])
        pretrain_nano.main()
        return out

    return main


@pytest.mark.slow
def test_a_stopped_run_goes_on_as_if_it_had_not_been(run, tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    save = pretrain_nano.save_checkpoint

    def stop(args, model, optimizers, step, steps):
        save(args, model, optimizers, step, steps)
        if step == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pretrain_nano, "save_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", "--checkpoint-minutes", "0")
    with pytest.raises(SystemExit, match="made with other settings .muon_rate."):
        run(tmp_path / "stopped", "--muon-rate", "0.1")
    stopped = run(tmp_path / "stopped")
    ours, theirs = (load_file(out / "model" / "model.safetensors") for out in (stopped, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(SystemExit, match="the rate is falling already"):
        run(tmp_path / "stopped", "--tokens", "20480")


def test_the_rate_rises_stays_and_falls():
    rates = [pretrain_nano.rate_at(step, 100, warmup=10, decay=0.4) for step in range(100)]
    assert rates[:10] == [(i + 1) / 10 for i in range(10)]
    assert set(rates[10:61]) == {1.0}
    assert rates[99] == pytest.approx(1 / 40)
    longer = [pretrain_nano.rate_at(step, 200, warmup=10, decay=0.4) for step in range(60)]
    assert longer == rates[:60]  # more steps change nothing before the fall


def test_rows_without_text_are_refused(tmp_path):
    write(tmp_path / "rows.jsonl.gz", [{"text": "one"}, {"words": "two"}])
    with pytest.raises(SystemExit, match="every row needs a text"):
        pretrain_nano.read_texts(tmp_path / "rows.jsonl.gz")
