"""What is held out stands in no file that is trained on, by a search that knows nothing of how it was taken out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from embrew.adapting import adapt
from embrew.adapting.preparation.leaks import HeldOutTexts, check_leaks
from embrew.adapting.preparation.prepare import Prepared
from embrew.analysis.qa import QA
from tests.adapting.data import prepare
from tests.rows import read_rows, write_rows

CITIES = ["Oslo", "Rome", "Cairo", "Lima", "Quito", "Dakar", "Hanoi", "Delhi", "Sofia", "Tunis", "Accra", "Minsk"]
THINGS = ["copper", "sulphur", "amber", "granite", "basalt", "quartz", "topaz", "marble", "slate", "chalk"]


def plain(text: str) -> str:
    return " ".join(re.sub("[^a-z0-9]+", " ", text.lower()).split())


def held_out(folder: Path) -> list[tuple[str, list[str]]]:
    """Questions with their right answers, of the files as they are."""
    found = []
    for split in ("test", "dev"):
        if not (folder / split).exists():
            continue
        corpus = {row["_id"]: row["text"] for row in read_rows(folder / split / "corpus.jsonl")}
        lines = [line.split("\t") for line in (folder / split / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]]
        for query in read_rows(folder / split / "queries.jsonl"):
            found.append((query["text"], [corpus[d] for q, d, _ in lines if q == query["_id"]]))
    return found


def leaks(data: Prepared) -> list[str]:
    """Every held-out question that stands in a training text, and every long held-out answer that is one."""
    pairs, passages = read_rows(data.pairs), [row["text"] for row in read_rows(data.passages)]
    texts = [*passages, *(row[side] for row in pairs for side in ("query", "positive"))]
    texts += [negative for row in pairs for negative in row["negatives"]]
    known, found = [plain(text) for text in texts], []
    for question, answers in held_out(data.folder):
        found += [f"question in {text!r}" for text in known if f" {plain(question)} " in f" {text} "]
        long = [plain(answer) for answer in answers if len(plain(answer).split()) >= 8]
        found += [f"answer {text!r}" for text in known if text in long]
    return found


def write_pairs(folder: Path, given: Sequence[dict[str, Any]]) -> Path:
    return write_rows(folder / "pairs.jsonl", given)


def faq(i: int) -> tuple[str, str]:
    thing, city = THINGS[i % len(THINGS)], CITIES[i % len(CITIES)]
    return f"How much {thing} did warehouse {i} send to {city}?", f"{i + 3} tons."


@pytest.mark.parametrize("per_file", [1, 4, 60])
def test_questions_of_a_faq(per_file, tmp_path):
    """Headings are the questions; answers are short, and no row says where it is from. One file, some, many."""
    (tmp_path / "docs").mkdir()
    for start in range(0, 60, per_file):
        parts = [f"## {q}\n\n{a} It was weighed twice." for q, a in map(faq, range(start, min(start + per_file, 60)))]
        (tmp_path / "docs" / f"{start}.md").write_text("\n\n".join(parts))
    (tmp_path / "docs" / "about.md").write_text("# About\n\nThe warehouses are old, and some of them are empty.")
    asked = [{"question": q, "answer": a} for q, a in map(faq, range(60))]
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data", max_chars=120)
    assert len(held_out(data.folder)) == 24 and data.count("train_passages") > 20
    assert leaks(data) == []
    assert data.manifest["checked"]["questions"] == 24
    if per_file == 60:
        assert data.count("passages_with_question") == 24, "of one document, the passages are dropped"
    else:
        assert data.count("linked") == 60, "by the question alone"


def test_multiple_choice(tmp_path):
    """A collection of tests: questions with their choices, which are choices of other questions too."""
    (tmp_path / "docs").mkdir()
    asked, parts = [], []
    for i in range(40):
        right = i % 4
        choices = [CITIES[(i + 5 * (k - right)) % len(CITIES)] for k in range(4)]
        question = f"Where does the {THINGS[i % 10]} of mine {i} go?"
        asked.append({"question": question, "choices": choices, "answer": "ABCD"[right]})
        listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
        parts.append(f"{i + 1}. {question}\n{listed}\n\nMines of this kind are deep, and number {i} is no exception.")
    for part in range(4):
        (tmp_path / "docs" / f"{part}.txt").write_text("\n\n".join(parts[part::4]))
    (tmp_path / "docs" / "history.txt").write_text("Mining is old. It began with flint, which was dug from chalk.")
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data", max_chars=150)
    assert len(held_out(data.folder)) == 20
    assert leaks(data) == []
    assert data.count("negatives_dropped") == 0 and data.count("train_pairs") == 20, "a name ties no pairs"


def test_without_pairs(tmp_path):
    """Paragraphs that documents copy from each other are not both asked for and trained on."""
    (tmp_path / "docs").mkdir()
    shared = "All stations report at noon. The report names the wind, the tide and every ship that has come in."
    for i in range(20):
        own = f"Station {i} stands on rock {i * 3}. It has seen {i * 7} storms since the year {1900 + i}, and no fire."
        (tmp_path / "docs" / f"{i}.txt").write_text(f"{own}\n\n{shared}\n\n{own.replace('Station', 'The house of')}")
    data = prepare(tmp_path / "docs", None, tmp_path / "data", max_chars=130)
    assert len(held_out(data.folder)) > 0 and data.count("train_passages") > 0
    assert leaks(data) == []


def test_the_same_question_is_on_one_side(tmp_path):
    """But for case, white space and punctuation."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("Something else entirely, which says nothing of these questions.")
    asked = []
    for i in range(40):
        asked += [{"question": f"How deep is well {i}?", "answer": f"{i} m, at least, from the rim to the water"}]
        asked += [{"question": f"how deep  is “well {i}”", "answer": f"about {i} metres from the  rim to the water"}]
        asked += [{"question": f"Depth of the {i}th well", "answer": f"About {i} metres, from the rim to the water."}]
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data")
    trained = {plain(row["query"]) for row in read_rows(data.pairs)} | {
        plain(row["positive"]) for row in read_rows(data.pairs)
    }
    for question, answers in held_out(data.folder):
        assert plain(question) not in trained and not trained & {plain(answer) for answer in answers}
    assert data.count("train_pairs") == 120 - 24 - 21


def test_parts_of_long_questions(tmp_path):
    """Questions of several passages: none of their own sentences, and no part of one, is trained on."""
    (tmp_path / "docs").mkdir()
    asked, parts = [], []
    for i in range(24):
        told = [
            f"On day {k} the {THINGS[(i + k) % 10]} of {CITIES[i % 12]} weighed {i * 31 + k * 7} tons."
            for k in range(9)
        ]
        question = f"{' '.join(told)} Which of these shipments was the heaviest one?"
        asked.append({"question": question, "answer": f"shipment{i}"})
        parts.append(f"Tale {i} begins here.\n\n{question}\n\nThe tale of number {i} ends, and nobody tells it again.")
    (tmp_path / "docs" / "tales.md").write_text("\n\n".join(parts))
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data", max_chars=200)
    trained = [plain(row["text"]) for row in read_rows(data.passages)]
    trained += [plain(row[side]) for row in read_rows(data.pairs) if row["made"] for side in ("query", "positive")]
    questions = [question for question, _ in held_out(data.folder)]
    own = [plain(sentence) for question in questions for sentence in question.split(". ")[:-1]]
    assert len(questions) == 9 and len(own) == 81 and len(trained) > 20
    assert [sentence for sentence in own if any(sentence in text for text in trained)] == []
    assert any("which of these shipments" in text for text in trained), "what all questions say is no part of one"


@pytest.mark.parametrize(
    ("question", "leaks"),
    [
        ("The patient has had a fever of thirty nine degrees since Monday. Which drug is best for a child?", True),
        ("zero one two three four five six seven eight nine ten eleven twelve thirteen and more?", True),
        ("Tell me, where is Paris now, please?", False),  # of 4 words, which many questions hold
        ("And where is Paris now on this map?", True),
    ],
)
def test_questions_to_train_on_that_hold_a_part_of_a_held_out_one(question, leaks):
    sick = "The patient has had a fever of thirty nine degrees since Monday. What should be done about it now?"
    row = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen: what is next?"
    held = [QA(sick, "a"), QA(row, "b"), QA("Where is Paris now?", "c"), QA("Where is Paris now on this map?", "d")]
    assert HeldOutTexts(held).question_leaks(question) is leaks


@pytest.mark.parametrize("marker", ["{}. ", "{}) ", "({}) "])
@pytest.mark.parametrize("marks", ["ABCD", "abcd", "1234"])
def test_choices_under_another_letter(marker, marks, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("Cities are large, and some of them are old as well.")
    asked = []
    for i in range(40):
        year = 1900 + i // 8
        choices = [f"It left for {CITIES[(i + step) % 12]} before the end of May {year}" for step in (0, 1, 5, 7)]
        listed = [marker.format(mark) + choice for mark, choice in zip(marks, choices, strict=True)]
        asked.append({"question": f"Where did ship number {i} go?", "options": listed, "answer": "ABCD"[i * 7 % 4]})
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data")
    right = {answer for _, answers in held_out(data.folder) for answer in answers}
    trained = [text for row in read_rows(data.pairs) for text in [row["positive"], *row["negatives"]]]
    assert all(answer.startswith("It left") for answer in right) and len(trained) > 30
    assert not right & set(trained) and data.count("negatives_dropped") > 0


@pytest.mark.parametrize("label", ["Answer: D", "**Answer:** D", "Correct answer: D", "(Answer: D)"])
def test_passages_that_list_a_right_answer_are_no_wrong_ones(label, tmp_path):
    """Right choices of two words: their passages are trained on, but not searched as irrelevant."""
    (tmp_path / "docs").mkdir()
    asked, parts = [], []
    for i in range(30):
        listed = "\n".join(f"{mark}) {THINGS[i % 10]} {i}{mark.lower()}" for mark in "ABCD")
        asked.append({"question": f"Select the proper stone of record {i} please", "answer": f"{THINGS[i % 10]} {i}d"})
        parts.append(f"{i}. Which one belongs to it?\n{listed}\n{label}")
    (tmp_path / "docs" / "exam.md").write_text("\n\n".join(parts))
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data", max_chars=100)
    tested = {row["text"] for row in read_rows(data.test / "queries.jsonl")}
    answers = [plain(answer) for question, found in held_out(data.folder) if question in tested for answer in found]
    searched = [plain(row["text"]) for row in read_rows(data.test / "corpus.jsonl")]
    assert len(answers) == 6 and len(searched) > 20 and set(answers) <= set(searched)
    assert [text for text in searched for answer in answers if f" {answer} " in f" {text} " and text != answer] == []
    assert any(answer in plain(row["text"]) for row in read_rows(data.passages) for answer in answers)


def test_questions_within_questions(tmp_path):
    """Of 5 words or more, either way round; a short one does not take another subject with it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("Something else entirely, which says nothing of these questions.")
    asked = []
    for i in range(40):
        asked += [{"question": f"What is the dose of drug {i} for adults?", "answer": f"It is {i} units a day"}]
        asked += [
            {"question": f"What is the dose of drug {i} for adults? Answer briefly.", "answer": f"take {i} pills"}
        ]
        asked += [{"question": f"dose of drug{i}", "answer": f"many, {i}"}]
        asked += [{"question": f"dose of drug{i} insipidus", "answer": f"few, {i}"}]
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data")
    questions = [plain(question) for question, _ in held_out(data.folder)]
    trained = [plain(row["query"]) for row in read_rows(data.pairs)]
    long = [q for q in questions if len(q.split()) >= 5]
    assert long and [(q, t) for q in long for t in trained if q in t or (len(t.split()) >= 5 and t in q)] == []
    assert any(f"{question} insipidus" in trained for question in questions)


@pytest.mark.parametrize(
    "left",
    [
        "tons. Which of the wells of record {0} ran dry in the summer of {1}",
        "dose, as they say. A) Oslo B) drug {0}x, taken twice a day with much water Answer: B",
        "Drug {0}x: taken twice a day with much water",
    ],
)
def test_what_is_left_in_part_is_counted(left, tmp_path):
    """It is an error where a part of a question, or a choice that is right, stands in a training file."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("Something else entirely, which says nothing of these questions.")
    asked = [
        {
            "question": f"Which of the wells of record {i} ran dry in the summer of {i + 1900} and why?",
            "answer": f"drug {i}x, taken twice a day with much water",
        }
        for i in range(30)
    ]
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data")
    assert check_leaks(data.folder) == data.manifest["checked"]
    number = int(re.findall("record ([0-9]+)", held_out(data.folder)[0][0])[0])
    with open(data.passages, "a") as file:
        file.write(json.dumps({"text": left.format(number, number + 1900), "document": "x"}) + "\n")
    (data.folder / "checksums.json").unlink()
    with pytest.raises(
        ValueError, match="1 texts of the training data hold held-out questions or answers, for example"
    ):
        check_leaks(data.folder)


def test_one_held_out_yes_drops_no_pair(tmp_path):
    """Pairs of two classes, of documents of their own: the questions and the documents are apart, and no more."""
    (tmp_path / "docs").mkdir()
    for i in range(200):
        (tmp_path / "docs" / f"{i}.txt").write_text(f"Trial {i} was held in {CITIES[i % 12]} with {i + 40} people.")
    asked = [
        {"question": f"Did drug {i} help in the trial?", "answer": "yes" if i % 4 else "No.", "source": f"{i}.txt"}
        for i in range(200)
    ]
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "data")
    assert data.manifest["classes"] == {
        "yes": {"train": 105, "dev": 15, "test": 30},
        "no": {"train": 35, "dev": 5, "test": 10},
    }
    assert data.count("pairs_dropped") == data.count("passages_with_answer") == 0
    assert data.count("documents_held_out") == 60 and data.count("train_passages") == 140
    assert leaks(data) == [] and data.manifest["checked"]["answers"] == 0
    assert sorted(answers for _, answers in held_out(data.folder)) == [["No."]] * 15 + [["yes"]] * 45


def test_classes_that_differ_between_splits_are_said(tmp_path, caplog):
    """All pairs with one answer are from one document, and stay together."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("Something else entirely, which says nothing of these questions.")
    answers = ["yes"] * 30 + ["no", "perhaps"] * 15
    asked = [{"question": f"Is {i} odd?", "answer": answer, "source": f"{i}"} for i, answer in enumerate(answers)]
    prepare(tmp_path / "docs", write_pairs(tmp_path, asked), tmp_path / "apart")
    assert "unevenly divided" not in caplog.text
    of_one = [row | {"source": "book"} if row["answer"] == "yes" else row for row in asked]
    data = prepare(tmp_path / "docs", write_pairs(tmp_path, of_one), tmp_path / "together")
    assert data.manifest["classes"]["yes"] == {"train": 30, "dev": 0, "test": 0}
    assert "the answer 'yes' is unevenly divided: 83% of train, 0% of dev, 0% of test" in caplog.text


@pytest.fixture
def prepared(tmp_path) -> tuple[Path, Path, Path]:
    (tmp_path / "docs").mkdir()
    for i in range(30):
        (tmp_path / "docs" / f"{i}.md").write_text(f"# Case {i}\n\nIt is number {i}, and nothing more is known of it.")
    pairs = write_pairs(tmp_path, [{"question": f"What of the case {i}?", "answer": f"It is {i}"} for i in range(30)])
    prepare(tmp_path / "docs", pairs, tmp_path / "out" / "data", max_chars=600)
    return tmp_path / "docs", pairs, tmp_path / "out"


@pytest.mark.parametrize("where", ["passages.jsonl", "pairs.jsonl", "override"])
def test_training_is_refused_where_something_is_left(where, prepared, tmp_path):
    """Files that were changed after they were prepared, and data that an override names."""
    docs, pairs, out = prepared
    question = held_out(out / "data")[0][0]
    overrides: list[str] = []
    pair = {"query": "Something", "positive": f"They asked: {question.upper()}", "negatives": [], "made": False}
    if where == "override":
        (tmp_path / "other.jsonl").write_text(json.dumps(pair) + "\n")
        overrides = [f"stages.contrast.data.path={tmp_path / 'other.jsonl'}"]
    else:
        row = {"text": f"Tests. {question}", "document": "x"} if where == "passages.jsonl" else pair
        with open(out / "data" / where, "a") as file:
            file.write(json.dumps(row) + "\n")
        (out / "data" / "checksums.json").unlink()
    with pytest.raises(ValueError, match=f"(?i)1 texts of the training data hold.*{re.escape(question)}"):
        adapt("nano", documents=docs, pairs=pairs, output=out, overrides=overrides)
    assert not (out / "model").exists() and not (out / "plans").exists()
