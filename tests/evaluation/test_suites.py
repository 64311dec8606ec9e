import json
import os
from pathlib import Path

import pytest

from embrew.evaluation import averages, evaluate, list_suites, read_suite
from embrew.evaluation.kinds.retrieval import select_documents
from embrew.evaluation.suites import fetchable

# papers/lbr*: MedQuAD's test split is our own, and no source has it.
NOT_FETCHABLE = {"papers/lbr", "papers/lbr-retention"}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "suites"


@pytest.fixture
def root(sts_folder, retrieval_folder):
    return sts_folder.parent


def write(path, text):
    path.write_text(text)
    return path


def test_a_suite_names_folders_and_settings(bag_of_words, root, tmp_path):
    suite = read_suite(
        write(
            tmp_path / "mine.yaml",
            "tasks:\n"
            "  - {data: STS, protocol: all}\n"
            "  - {data: STS, name: by-subset, split: test, protocol: all}\n"
            "  - {data: pets, documents: judged}\n"
            "averages:\n"
            "  both: [STS, pets]\n",
        ),
        data=root,
    )
    assert [(task.name, task.kind, dict(task.settings)) for task in suite.tasks] == [
        ("STS", "sts", {"protocol": "all"}),
        ("by-subset", "sts", {"protocol": "all"}),
        ("pets", "retrieval", {"documents": "judged"}),
    ]
    results = evaluate(bag_of_words, suite)
    assert results[2].counts["documents"] == 2  # d3 is not judged
    found = averages(results, suite.averages)
    assert found == {
        "sts": pytest.approx(1.0),
        "mean over kinds": pytest.approx((1 + 2 / 3) / 2),
        "mean over tasks": pytest.approx((1 + 1 + 2 / 3) / 3),
        "both": pytest.approx((1 + 2 / 3) / 2),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: []", "tasks is empty"),
        ("- STS", "a suite is a mapping with the keys tasks, instructions, prompt, averages"),
        ("tasks: [{data: STS}]\nname: x", "mine.yaml:2: .*name"),
        ("tasks:\n  - {data: STS}\n  - {split: dev}", "mine.yaml:3: a task needs data: FOLDER or mteb: NAME"),
        ("tasks: [{data: STS, kind: clusters}]", "mine.yaml:1: kind='clusters'; choose from sts"),
        (
            "tasks: [{data: STS, samples_per_label: 8}]",
            "samples_per_label is not a setting of sts; choose from protocol, columns",
        ),
        ("tasks: [{data: STS, split: dev}]", "mine.yaml:1: .* has no split 'dev'"),
        ("tasks: [{data: STS}]\naverages: {a: [STS, pets]}", "mine.yaml:2: pets is not a task of the suite"),
    ],
)
def test_mistakes_say_where(root, tmp_path, text, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_suite(write(tmp_path / "mine.yaml", text), data=root)


def test_all_missing_data_is_named_at_once(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="sts.yaml: .* lacks BIOSSES, STS12, STS13, STS14, STS15, STSB"):
        read_suite(BENCHMARKS / "sts.yaml", data=tmp_path)
    monkeypatch.delenv("EMBREW_DATA", raising=False)
    with pytest.raises(ValueError, match="environment variable EMBREW_DATA, which is not set"):
        read_suite(BENCHMARKS / "sts.yaml")
    with pytest.raises(FileNotFoundError, match="no suite named 'quik'; did you mean 'quick'"):
        read_suite("quik")


def test_all_other_shipped_suites_can_be_fetched():
    assert {name for name in list_suites() if fetchable(name)[2]} == NOT_FETCHABLE


def test_a_corpus_is_cut_the_same_way_every_time(retrieval_folder):
    from embrew.data.beir import read_beir

    corpus = "".join(json.dumps({"_id": f"x{i}", "text": f"more {i}"}) + "\n" for i in range(50))
    with (retrieval_folder / "corpus.jsonl").open("a") as file:
        file.write(corpus)
    data = read_beir(retrieval_folder, "dev")
    assert select_documents(data, documents="all", distractors=0, seed=1) is data
    cut = [select_documents(data, documents="judged", distractors=10, seed=seed).corpus for seed in (1, 1, 2)]
    assert cut[0] == cut[1] != cut[2]
    assert len(cut[0]) == 12
    assert {"d1", "d2"} <= {document.id for document in cut[0]}
    with pytest.raises(ValueError, match="the corpus has 51 documents that are not judged"):
        select_documents(data, documents="judged", distractors=100, seed=1)
    with pytest.raises(ValueError, match="distractors=5 needs documents: judged"):
        select_documents(data, documents="all", distractors=5, seed=1)
    with pytest.raises(ValueError, match="documents='some'; choose from all, judged"):
        select_documents(data, documents="some", distractors=0, seed=1)


@pytest.mark.skipif("EMBREW_DATA" not in os.environ, reason="needs the data folder EMBREW_DATA names")
def test_shipped_suites_and_those_of_the_benchmarks_find_their_data():
    for name in list_suites():
        assert name.startswith("papers/") or read_suite(name).tasks
    suites = {name: read_suite(BENCHMARKS / f"{name}.yaml").tasks for name in ("rag", "sts")}
    assert {name: len(tasks) for name, tasks in suites.items()} == {"rag": 1, "sts": 6}


def test_instructions_reach_texts_and_queries_only(bag_of_words, root, tmp_path):
    suite = read_suite(
        write(
            tmp_path / "mine.yaml",
            'prompt: "{instruction}: "\n'
            "tasks:\n"
            "  - {data: STS, instruction: Compare}\n"
            "  - {data: pets, instruction: Search}\n",
        ),
        data=root,
    )
    evaluate(bag_of_words, suite)
    assert [(side, options.get("prompt")) for side, _, options in bag_of_words.calls] == [
        ("text", "Compare: "),
        ("query", "Search: "),
        ("document", None),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: [{mteb: STS17, data: STS}]", "give one of them"),
        ("tasks: [{name: x}]", "needs data: FOLDER or mteb: NAME"),
        ("tasks: [{mteb: STS17, protocol: all}]", "protocol is not a setting of an mteb task"),
        ("instructions: mine\ntasks: [{mteb: STS17}]", "mine.yaml:1: instructions='mine'; choose from llm2comp, epic"),
        ("prompt: x\ntasks: [{mteb: STS17}]", "has no {instruction} to fill in"),
    ],
)
def test_mistakes_with_mteb_and_instructions(root, tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_suite(write(tmp_path / "mine.yaml", text), data=root)
