"""Written questions: rules by hand, writers of all kinds, a killed job, what adapt makes of them."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

from embrew import Encoder, adapt, write_questions
from embrew.adapting.defaults import read_defaults
from embrew.adapting.preparation.matching import words
from embrew.adapting.preparation.prepare import prepare_data
from embrew.adapting.preparation.sources import data_source
from embrew.adapting.questions import job, teacher, writers
from embrew.adapting.questions.job import QuestionMaker
from embrew.adapting.questions.rules import check_questions, is_copy, longest_row, reason_by_words
from embrew.adapting.questions.writers import ASK, Written, open_writer, questions_in
from embrew.cli import app
from embrew.data.beir import read_beir
from embrew.files.reading import BrokenFile
from embrew.ranking import BM25
from tests.adapting.test_prepare import words as words_of_case
from tests.conftest import ENCODER_SIZES
from tests.rows import read_rows, write_rows
from tests.test_mining import Angles

PASSAGE = "The treaty was signed in the old town hall in 1494, and it divided the lands between Portugal and Castile."
CHAT = "{% for m in messages %}<s>user {{ m.content }}</s>{% endfor %}<s>"


@pytest.fixture(autouse=True)
def _few_tokens(monkeypatch) -> None:
    monkeypatch.setattr(writers, "MAX_NEW_TOKENS", 6)


# ---- rules


@pytest.mark.parametrize(
    ("question", "is_whole", "reason"),
    [
        ("Which countries shared the land?", True, None),
        ("?! …", True, "empty"),
        ("", True, "empty"),
        ("Which countries shar", False, "cut"),
        ("Was it signed in the old town hall?", True, "copy"),  # 6 words of 8 in a row
        ("signed in 1494", True, None),  # in order, but not in a row
        ("In 1494, what did the two kings agree on in the old town hall?", True, None),  # 5 words of 14
        ("the treaty was signed", True, None),  # a row of 4: a term may be asked for
        ("Welche Länder haben es geteilt, und wann war das?", True, "language"),
        ("Когда был подписан договор?", True, "language"),
        ("条約はいつ署名されましたか", True, "language"),
        ("1494?", True, None),
    ],
)
def test_rules_on_words(question, is_whole, reason):
    assert reason_by_words(Written(question, is_whole), PASSAGE) == reason


def test_languages_are_told_apart_where_the_words_tell():
    german = "Der Vertrag wurde in der alten Stadt unterzeichnet, und die Länder sind bis heute geteilt."
    chinese = "该条约于1494年在旧市政厅签署，将土地划分给葡萄牙和卡斯蒂利亚。"
    for question, passage, reason in (
        ("Wann wurde der Vertrag geschlossen?", german, None),
        ("When was the treaty signed?", german, "language"),
        ("条约是什么时候签署的？", chinese, None),
        ("When was the treaty signed?", chinese, "language"),
        ("Which enzyme does aspirin inhibit?", "Aspirin: COX inhibitor. Dosage: 100 mg.", None),  # no stop words
    ):
        assert reason_by_words(Written(question, True), passage) == reason, question


def test_a_row_of_letters_is_no_row_of_words():
    passage = "中华人民共和国于1949年成立，首都是北京。"
    assert reason_by_words(Written("中华人民共和国何时成立？", True), passage) is None
    assert reason_by_words(Written("中华人民共和国于1949年成立，首都？", True), passage) == "copy"


def test_the_longest_row_is_that_of_another_library():
    texts = [PASSAGE, words_of_case(1), "was signed in the old hall", "the the was the"]
    for first in texts:
        for second in texts:
            a, b = words(first), words(second)
            found = SequenceMatcher(None, a, b, autojunk=False).find_longest_match()
            assert longest_row(a, b) == found.size
    assert is_copy(PASSAGE, PASSAGE)


def test_round_trip_duplicates_and_twins():
    """100 passages, so that the first ten count; the twin of a passage is as good as it."""
    passages = [f"The number {chr(97 + i % 26)}{i} stands alone here." for i in range(99)]
    passages.append(passages[3].upper())
    written = [[] for _ in passages[:5]]
    written[3] = [Written("what of d3", True), Written("What of d3?", True), Written("nothing known", True)]
    written[4] = [Written("where is d3", True), Written("", True)]
    questions = check_questions(passages, written, lambda: BM25(passages))
    assert [question.reason for question in questions] == [None, "duplicate", "not found", "not found", "empty"]
    first = questions[0]
    assert first.rank == 1 and first.score > 0 and first.passage == 3
    assert [question.reason for question in check_questions(passages, written, None)][2:4] == [None, None]


def test_lines_become_questions():
    assert questions_in('1) Who?\n\n**Question 2:** Where is "it"?\n- “When?”\n3.5 mg of what?') == [
        "Who?",
        'Where is "it"?',
        "When?",
        "3.5 mg of what?",
    ]
    answer = "<think>Okay, the user\nwants two.</think>\n## Questions\n```\nHere you are:\nWho?\n```"
    assert questions_in(answer) == ["Who?"]
    assert questions_in("Okay, they want two.\n</think>\nWho \ud83d?") == ["Who ??"]
    assert questions_in("<think>Okay, the user") == []


# ---- writers


@pytest.fixture
def docs(tmp_path) -> Path:
    rows = [{"_id": f"d{i}", "text": words_of_case(10 + i)} for i in range(7)]
    return write_rows(tmp_path / "docs.jsonl", [*rows, {"_id": "empty", "text": " "}])


def test_a_killed_job_writes_what_an_unkilled_one_does(docs, model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "BLOCK", 2)
    given: dict[str, Any] = {"writer": str(model_folder("llama")), "seed": 3}
    whole = write_questions(docs, tmp_path / "whole.jsonl", **given)
    assert whole["passages"] == 7 and whole["questions"] == 14 and whole["minutes"] > 0
    process = os.fork()
    if not process:
        count, write = 0, writers.LocalWriter.write

        def dying(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*arguments, **options)

        writers.LocalWriter.write = dying  # type: ignore[method-assign]
        try:
            write_questions(docs, tmp_path / "killed.jsonl", **given)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    folder = tmp_path / "killed.written"
    assert sorted(file.name for file in folder.glob("0*")) == ["000000.json", "000001.json"]
    assert not (tmp_path / "killed.jsonl").exists()
    with pytest.raises(FileExistsError, match=r"with other settings \(seed\); choose another output, remove"):
        write_questions(docs, tmp_path / "killed.jsonl", **{**given, "seed": 4})
    write_questions(docs, tmp_path / "killed.jsonl", **given)
    for suffix in ("jsonl", "checked.jsonl", "written/000003.json", "written/settings.json"):
        assert (tmp_path / f"killed.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()
    block = tmp_path / "killed.written" / "000002.json"
    block.write_text(block.read_text().replace("true", "false").replace('"text": "', '"text": "x'))
    with pytest.raises(BrokenFile, match=r"000002\.json"):
        write_questions(docs, tmp_path / "killed.jsonl", overwrite=True, **given)
    # checked again, nothing is written
    monkeypatch.setattr(job, "open_writer", lambda _: pytest.fail("opened"))
    with pytest.raises(FileExistsError, match="exists already"):
        write_questions(docs, tmp_path / "whole.jsonl", **given)
    assert write_questions(docs, tmp_path / "whole.jsonl", overwrite=True, **given)["minutes"] is None


def test_what_an_earlier_call_wrote_is_used_for_its_own_passages_alone(docs, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "open_writer", Scripted)
    monkeypatch.setattr(job, "BLOCK", 3)
    output = tmp_path / "q.jsonl"
    dry = write_questions(docs, output, writer="x", dry_run=True)
    assert dry["questions"] == 6
    again: dict[str, Any] = {"writer": "y", "max_passages": 5, "seed": 1, "overwrite": True}
    assert write_questions(docs, output, **again)["questions"] == 10, "a dry run with other settings is replaced"
    first, second = (tmp_path / "q.written" / f"00000{i}.json" for i in range(2))
    first.unlink()
    assert write_questions(docs, output, **again, dry_run=True)["questions"] == 10
    first.write_bytes(second.read_bytes())
    with pytest.raises(BrokenFile, match="holds questions of other passages; remove the file"):
        write_questions(docs, output, **again)
    (tmp_path / "q.written" / "settings.json").unlink()
    with pytest.raises(BrokenFile, match=r"has questions and no settings\.json; remove the folder"):
        write_questions(docs, output, **again)


def test_another_writer_of_the_same_name_is_another_writer(docs, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "open_writer", Scripted)
    monkeypatch.setattr(job, "BLOCK", 3)
    weights = tmp_path / "writer" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    write_questions(docs, tmp_path / "q.jsonl", writer=str(weights.parent))
    monkeypatch.chdir(tmp_path)
    write_questions(docs, tmp_path / "q.jsonl", writer="writer", overwrite=True)  # by another path
    weights.write_bytes(b"two")
    with pytest.raises(FileExistsError, match=r"with other settings \(writer\)"):
        write_questions(docs, tmp_path / "q.jsonl", writer="writer", overwrite=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"output": "."}, FileExistsError, "is a folder; give a file, such as"),
        ({"output": "docs/q.jsonl"}, ValueError, "q.jsonl is within the documents .*; choose an output outside"),
        ({"teacher": "nano"}, ValueError, "teacher='nano' is a language model without embedding settings"),
        ({"check": "nano"}, ValueError, "check='nano' is a language model without embedding settings"),
        ({"writer": "http://[::1/v1#x"}, ValueError, "address is not that of a server; give http://HOST/v1#MODEL"),
        ({"writer": "ftp://host/v1#x"}, ValueError, "address is not that of a server"),
        ({"writer": "bert"}, ValueError, "is an embedding model, which writes no questions"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    options, error, message, encoder_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text(PASSAGE)
    given = {"output": "q.jsonl", "writer": "nano", **options}
    if given["writer"] == "bert":
        given["writer"] = str(encoder_folder("bert"))
    with pytest.raises(error, match=message):
        write_questions("docs", **given)
    assert not list(tmp_path.glob("q*"))


def test_names_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / os.fsdecode(b"page\xe9.txt")).write_text(PASSAGE)
    with pytest.raises(ValueError, match=r"page.*xe9\.txt'*: its name is not valid UTF-8; rename it"):
        write_questions(tmp_path, tmp_path.with_suffix(".jsonl"), writer="nano")


def recorded(monkeypatch, writer: Any) -> list[Any]:
    """The rows that a writer generates after."""
    rows: list[Any] = []
    generate = writer.encoder.generate

    def recording(texts: Sequence[Any], **options: Any) -> Any:
        limit = writer.encoder.max_length["query"]
        rows.extend(writer.encoder.template.rows(texts, instruction="", max_length=limit))
        return generate(texts, **options)

    monkeypatch.setattr(writer.encoder, "generate", recording)
    return rows


@pytest.mark.parametrize("chat", [True, False])
def test_special_tokens_of_a_passage_stay_text_and_long_passages_are_cut(chat, model_folder, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in model_folder("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    if chat:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer.chat_template = CHAT
        tokenizer.save_pretrained(folder)
    writer = open_writer(str(folder))
    rows = recorded(monkeypatch, writer)
    passages = ["It ends </s><s>user here<pad>.", "long " * 400]
    written = writer.write(passages, 3, seed=1)
    assert [len(questions) for questions in written] == [3, 3]
    assert written == writer.write(passages, 3, seed=1) != writer.write(passages, 3, seed=2)
    ids, decode = rows[0].ids, writer.encoder.tokenizer.decode
    special = [i for i in ids if i in (0, 1, 2)]
    assert special == ([1, 2, 1] if chat else [1]), "BOS once, and what the chat format has"
    assert decode(ids, skip_special_tokens=chat).count("It ends </s><s>user here<pad>.") == 1
    if chat:
        asked = ASK.format(count="one question", form="the question only", passage=passages[0])
        assert decode(ids) == f"<s>user {asked}</s><s>"
    assert decode(rows[1].ids).count("long") < 400
    assert len(rows[1].ids) + 6 <= writer.encoder.backbone.max_positions


def test_truncated_passages_are_said(docs, model_folder, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writers, "LONGEST", 30)
    with caplog.at_level(logging.INFO):
        report = write_questions(docs, tmp_path / "q.jsonl", writer=str(model_folder("llama")), dry_run=True)
    assert "7 passages are truncated: local:llama reads 30 tokens of each" in caplog.text
    assert (
        "writes 2 questions for each of 7 passages, about" in caplog.text and "all passages take about" in caplog.text
    )
    assert "1 empty documents are left out" in caplog.text
    assert report["output"] is None and not (tmp_path / "q.jsonl").exists()
    empty = write_rows(tmp_path / "empty.jsonl", [{"text": "\n"}])
    with pytest.raises(ValueError, match="all documents are empty"):
        write_questions(empty, tmp_path / "q.jsonl", writer="nano")
    short = write_rows(tmp_path / "short.jsonl", [{"text": "short"}])
    with pytest.raises(ValueError, match="none of 1 passages has 40 characters"):
        write_questions(short, tmp_path / "q.jsonl", writer="nano")


def test_a_trained_encoder_writes_after_its_template(model_folder, tmp_path, monkeypatch):
    recipe = "stages: [{{name: write, objective: {{type: {kind}}}}}]"
    settings: dict[str, Any] = {"attention": "causal", "template": "Passage: {text}\nQuestion:", "pooling": "last"}
    lengths = {"query": 40, "document": 16}
    encoder = Encoder.from_pretrained(model_folder("llama"), words_after="separate", max_length=lengths, **settings)
    for kind in ("sft", "contrastive"):
        encoder.save_pretrained(tmp_path / kind / "write", verify="off", recipe=recipe.format(kind=kind))
    with pytest.raises(ValueError, match="was trained by contrastive, and writes no questions"):
        open_writer(str(tmp_path / "contrastive" / "write"))
    writer = open_writer(str(tmp_path / "sft" / "write"))
    rows = recorded(monkeypatch, writer)
    assert [len(one) for one in writer.write(["long " * 40], 2, seed=0)] == [2]
    text = writer.encoder.tokenizer.decode(rows[0].ids)
    assert text.startswith("<s>Passage: long") and text.endswith("Question:") and len(rows[0].ids) == 40
    assert writer.limit == 40 - len(writer.encoder.template.rows([""])[0].ids)


def test_a_question_after_an_announcement_may_be_cut(monkeypatch):
    writer = open_writer("nano")
    cut = "Here is a question about the passage:\nWhat is the main reason for the long words that stand between the two"
    for text, whole in ((cut, False), (f"{cut}?", True), (f"{cut}\nWhen?", True), ("What is it", True)):
        monkeypatch.setattr(writer.encoder, "generate", lambda *_, text=text, **__: [text])
        monkeypatch.setattr("embrew.adapting.questions.writers.MAX_NEW_TOKENS", len(writer._ids(cut)))
        ((question,),) = writer.write(["a passage"], 1, seed=0)
        assert question.is_whole is whole, text


class Api(BaseHTTPRequestHandler):
    """A server with OpenAI's API, whose first answer has another status."""

    requests: list[tuple[str, Any, Any]] = []  # noqa: RUF012
    reason, first_status = "stop", 503
    text: str | None = None

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, self.headers["Authorization"], body))
        if len(self.requests) == 1:
            self.send_response(self.first_status)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        number = body["messages"][0]["content"].rpartition("case ")[2]
        text = f"1. Which facts belong to case {number}\n2. Where does case {number.strip('.')}"
        text = text if self.text is None else self.text
        self.answer({"choices": [{"message": {"content": text}, "finish_reason": self.reason}]})

    def answer(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Api.requests.clear()
    with HTTPServer(("127.0.0.1", 0), Api) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


@pytest.mark.parametrize("status", [503, 500])
def test_a_server_writes(docs, server, status, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Api, "first_status", status)
    monkeypatch.setenv("EMBREW_API_KEY", "very-secret")
    monkeypatch.setattr(Api, "reason", "length")
    with caplog.at_level(logging.DEBUG):
        report = write_questions(docs, tmp_path / "q.jsonl", writer=server)
    assert report["questions"] == 14 and report["rejected"]["cut"] == 7
    assert len(Api.requests) == 8, "one was asked again"
    path, key, body = Api.requests[-1]
    assert (path, key) == ("/v1/chat/completions", "Bearer very-secret")
    assert body["model"] == "tiny" and body["max_tokens"] == 2 * 6 and "2 different" in str(body)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 5 and not any("very-secret" in file.read_text() for file in files)
    assert "very-secret" not in caplog.text
    checked = read_rows(tmp_path / "q.checked.jsonl")
    assert checked[0]["query"] == "Which facts belong to case 10." and checked[0]["kept"]
    with pytest.raises(ValueError, match="http://localhost:1/v1 cannot be reached"):
        write_questions(docs, tmp_path / "other.jsonl", writer="http://localhost:1#x")
    with pytest.raises(ValueError, match="unencrypted; give an https address"):
        open_writer("http://example.org/v1#x")
    with pytest.raises(ValueError, match="holds a user or a password") as raised:
        write_questions(docs, tmp_path / "other.jsonl", writer="https://me:hidden@example.org/v1#x")
    assert "hidden" not in str(raised.value)


def test_a_server_that_thinks_elsewhere_is_refused_and_nothing_is_kept(docs, server, tmp_path, monkeypatch):
    monkeypatch.setattr(Api, "reason", "length")
    monkeypatch.setattr(Api, "text", "")
    with pytest.raises(ValueError, match="answers with thoughts alone, or nothing, in 12 tokens"):
        write_questions(docs, tmp_path / "q.jsonl", writer=server)
    assert not list(tmp_path.glob("q.written/0*"))


@pytest.mark.parametrize(("key", "sent"), [("secret\n", "Bearer secret"), ("se\ncret", None), ("sécret", None)])
def test_a_key_with_white_space_around_it_is_sent_without(key, sent, docs, server, tmp_path, monkeypatch):
    monkeypatch.setenv("EMBREW_API_KEY", key)
    if sent is None:
        with pytest.raises(ValueError, match="has characters that no key has; copy it again") as raised:
            open_writer(server)
        assert "cret" not in str(raised.value)
        return
    open_writer(server).write(["text"], 1, seed=0)
    assert Api.requests[-1][1] == sent


def test_a_request_that_a_server_refuses_names_what_can_be_changed(docs, server, tmp_path, monkeypatch):
    monkeypatch.setattr(Api, "first_status", 400)
    with pytest.raises(ValueError, match=r"answers 400: ; the request had a passage .* give shorter passages"):
        write_questions(docs, tmp_path / "q.jsonl", writer=server)


# ---- the command, adapt and the teacher


def test_the_command_shows_both_kinds(docs, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "open_writer", Scripted)
    arguments = ["questions", str(docs), "-o", str(tmp_path / "q.jsonl"), "--writer", "x"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    shown = done.stdout
    assert "Which facts belong to case 13?" in shown and "duplicate" in shown
    assert "7 of 14 questions are kept; rejected: 7 duplicate" in " ".join(shown.split())
    rows = read_rows(tmp_path / "q.jsonl")
    first = {"query": "Which facts belong to case 10?", "positive": words_of_case(10), "source": "docs.jsonl#d0"}
    assert rows[0] == first and len(rows) == 7
    report = json.loads(CliRunner().invoke(app, [*arguments, "--overwrite", "--json"]).stdout)
    assert len(report["examples"]["rejected"]) == 7 and report["examples"]["kept"][0]["rank"] == 1


class Scripted:
    """A writer that asks about the number of a case, twice the same."""

    limit = None

    def __init__(self, name: str) -> None:
        self.name = name

    def tokens(self, passage: str) -> int:
        return len(passage.split())

    def write(self, passages: Sequence[str], count: int, *, seed: int) -> list[list[Written]]:
        numbers = [passage.rstrip(".").split()[-1] for passage in passages]
        return [[Written(f"Which facts belong to case {number}?", True)] * count for number in numbers]


@pytest.fixture
def prepared(tmp_path, monkeypatch) -> Callable[[int, bool], Any]:
    """Data prepared of 60 documents and a number of pairs, with a writer or without."""
    monkeypatch.setattr(job, "open_writer", Scripted)
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i}.md").write_text(words_of_case(10 + i))

    def prepare(count: int, writes: bool) -> Any:
        rows = [{"question": f"Tell me of {i}, please?", "answer": words_of_case(10 + i)} for i in range(count)]
        pairs = data_source(write_rows(tmp_path / f"{count}.jsonl", rows), "pairs") if count else None
        out = tmp_path / f"{count}-{writes}"
        maker = QuestionMaker(writer="/x/w", folder=out / "questions", per_passage=2, most=50, seed=1)
        documents = data_source(folder, "documents")
        given: dict[str, Any] = {"defaults": read_defaults(), "questions": maker if writes else None}
        return prepare_data(documents, pairs, out / "data", **given)

    return prepare


def test_without_pairs_questions_of_all_parts_are_written(prepared, tmp_path):
    data = prepared(0, True)
    rows = read_rows(data.pairs)
    test, dev = read_beir(data.test, "test"), read_beir(data.dev, "dev")
    asked = [*(row["query"] for row in rows), *test.queries.values(), *dev.queries.values()]
    assert all(text.startswith("Which facts belong to case") for text in asked) and len(set(asked)) == len(asked)
    assert len(test.queries) == len(dev.queries) == 6 and all(row["made"] for row in rows)
    numbers = {row["query"].rstrip("?").split()[-1]: row["positive"] for row in rows}
    assert all(text == words_of_case(int(number)) for number, text in numbers.items())
    assert data.manifest["made_of"]["questions"] == {"writer": "local:w", "per_passage": 2, "most": 50}
    checked = read_rows(tmp_path / "0-True" / "questions" / "train.checked.jsonl")
    assert {row["reason"] for row in checked} == {None, "duplicate"} and len(checked) == 2 * 48
    held_out = read_rows(tmp_path / "0-True" / "questions" / "held-out.checked.jsonl")
    assert len(held_out) == 12 and all(row["rank"] is None for row in held_out), "no search chose the test"
    sentences = prepared(0, False)
    assert sentences.manifest["made_of"]["questions"] is None
    assert read_rows(sentences.pairs)[0]["query"].endswith("is said first.")


@pytest.mark.parametrize("count", [60, 140])
def test_real_questions_are_never_replaced(prepared, count, tmp_path):
    data = prepared(count, True)
    for part, folder in (("test", data.test), ("dev", data.dev)):
        assert all(text.startswith("Tell me of") for text in read_beir(folder, part).queries.values())
    made = [row["made"] for row in read_rows(data.pairs)]
    assert made.count(False) == data.count("train_pairs")
    assert (True in made) is (count == 60), "written ones join where fewer than 64 real ones are left to train on"
    assert not data.manifest["questions_made"]
    assert (tmp_path / f"{count}-True" / "questions").exists() is (count == 60)


def test_adapt_resumes_where_it_was_stopped_while_questions_were_written(docs, model_folder, tmp_path, monkeypatch):
    class Missing(Scripted):
        def __init__(self, name: str) -> None:
            raise FileNotFoundError(f"no folder here: {name}")

    class Stopped(Scripted):
        def write(self, passages: Sequence[str], count: int, *, seed: int) -> list[list[Written]]:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"documents": docs, "output": tmp_path / "out", "quick": True}
    for _ in range(2):
        monkeypatch.setattr(job, "open_writer", Stopped)
        with pytest.raises(KeyboardInterrupt):
            adapt(model_folder("llama"), writer="any", **given)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["questions"]
    early = {**given, "output": tmp_path / "early"}
    with pytest.raises(FileNotFoundError, match="no folder here"):  # before the writer is open
        monkeypatch.setattr(job, "open_writer", Missing)
        adapt(model_folder("llama"), writer="any", **early)
    monkeypatch.setattr(job, "open_writer", Stopped)
    with pytest.raises(KeyboardInterrupt):
        adapt(model_folder("llama"), writer="another", **early)
    (tmp_path / "texts").mkdir()
    with pytest.raises(ValueError, match="texts/out is within the documents"):
        adapt(model_folder("llama"), documents=tmp_path / "texts", output=tmp_path / "texts" / "out")
    with pytest.raises(ValueError, match="without documents; give the documents"):
        adapt(model_folder("llama"), pairs=docs, writer="any", output=tmp_path / "other")


ROWS = [{"query": "q 0", "positive": "p 20", "source": "a"}, {"query": "q 90", "positive": "p 110", "source": "b"}]


def test_a_teacher_adds_negatives_that_are_far_enough_and_its_cosines(monkeypatch):
    monkeypatch.setattr(teacher, "open_model", lambda _: Angles())
    monkeypatch.setattr(teacher, "is_cross_encoder", lambda _: False)
    monkeypatch.setattr(teacher, "is_bare", lambda _: False)
    passages = ["p 20", "p 110", "n 19", "n 21", "n 30", "n 45"]
    rows = teacher.with_margins(ROWS, passages, "any")
    assert rows[0]["negatives"][:2] == ["n 30", "n 45"], "19 and 21 degrees are too near"
    for row, angle in zip(rows, (0, 90), strict=True):
        degrees = [int(text.split()[1]) - angle for text in (row["positive"], *row["negatives"])]
        assert row["scores"] == pytest.approx((20 * np.cos(np.deg2rad(degrees))).tolist(), abs=1e-4)
        assert row["source"] == ROWS[angle // 90]["source"]


def test_a_cross_encoder_scores_and_does_not_mine(encoder_folder, tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**ENCODER_SIZES, num_labels=1)).eval()
    model.save_pretrained(tmp_path / "cross")
    tokenizer = AutoTokenizer.from_pretrained(encoder_folder("bert"), trust_remote_code=False)
    tokenizer.save_pretrained(tmp_path / "cross")
    name = str(tmp_path / "cross")
    assert teacher.is_cross_encoder(name) and not teacher.is_cross_encoder(str(encoder_folder("bert")))
    with pytest.raises(ValueError, match="is a cross-encoder, which mines no negatives"):
        teacher.with_margins(ROWS, ["p 20"], name)
    monkeypatch.setattr(teacher, "open_model", lambda _: Angles())
    rows = teacher.with_margins(ROWS, ["p 20", "p 110", "n 45"], name, miner="angles")
    with torch.inference_mode():
        texts = [rows[0]["positive"], *rows[0]["negatives"]]
        logits = [float(model(**tokenizer("q 0", text, return_tensors="pt")).logits) for text in texts]
    assert rows[0]["scores"] == pytest.approx(logits, abs=1e-5) and len(logits) > 1


def test_with_scores_the_loss_that_exists_trains(model_folder, tmp_path):
    """Pairs of a teacher are rows that `contrastive` reads with `distillation_weight`."""
    from embrew.recipe import Recipe
    from embrew.training.stages import train

    few = [{"query": f"q {i}", "positive": f"p {i}", "source": "a"} for i in range(4)]
    scored: list[dict[str, Any]] = [{"negatives": [], "scores": [2.0]}]
    scored += [{"negatives": [f"n {i}"], "scores": [3.0, 1.0]} for i in range(1, 4)]
    path = write_rows(tmp_path / "pairs.jsonl", [one | more for one, more in zip(few, scored, strict=True)])
    stage = {
        "name": "one",
        "objective": {"type": "contrastive", "distillation_weight": 1.0},
        "data": {"path": str(path)},
        "batch": {"size": 4},
        "training": {"max_steps": 1, "use_cpu": True},
    }
    encoder = {"model": str(model_folder("llama")), "template": "{text}", "attention": "causal", "lora": {"r": 2}}
    values = {"encoder": {**encoder, "pooling": {"mode": "mean"}}, "stages": [stage]}
    assert isinstance(train(Recipe.from_values(values), tmp_path / "run", verify="off"), Encoder)
