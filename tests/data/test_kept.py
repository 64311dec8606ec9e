"""Rows of large data sets: the same as those read row by row, kept once, by content and settings."""

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from embrew.data import datasets, kept
from embrew.data.datasets import load
from embrew.data.rejects import Rejects


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def listed(path: Path, **options) -> list[dict]:
    return load(path, kind="pairs", **options).to_list()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBREW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "LARGE", 1)
    return tmp_path / "cache" / "rows"


def folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("[!.]*"))


def mixed_rows(count: int) -> list[dict]:
    """Pairs of every form, so that some blocks can be taken as they are and others need conversion."""
    draw = random.Random(1)
    rows = []
    for number in range(count):
        row: dict = {"query": f"q {number}", "positive": f"p {number}"}
        if number > count // 2:
            row["positive"] = draw.choice([f"p {number}", [f"p {number}", f"r {number}"]])
        if number % 3000 > 1500:
            row["negative"] = draw.choice([f"n {number}", [f"n {number}", "m"], []])
        if number % 5000 > 3700:
            row["instruction"] = draw.choice(["i", None, ""])
        rows.append(row)
    return rows


def test_blocks_give_the_rows_that_single_rows_give(tmp_path):
    path = written(tmp_path / "pairs.jsonl", mixed_rows(12_000))
    one_by_one = listed(path, min_chars=1)  # a limit, which no row exceeds
    assert listed(path) == one_by_one
    assert len(one_by_one) > 12_000
    assert listed(path, max_rows=2345) == one_by_one[:2345]
    texts = load(path, kind="text", columns={"text": "query"})
    assert texts["text"][:] == [f"q {number}" for number in range(12_000)]
    instructed = listed(path, instruction="of all")
    assert instructed == listed(path, instruction="of all", min_chars=1)
    assert {row["instruction"] for row in instructed} == {"of all"}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ('{"query": "q", "positive": " "}', "positive is empty"),
        ('{"query": "q", "positive": 3}', "not a text"),
        ('{"query": "q", "positive": "p", "negative": ["n", null]}', "not a text"),
        ('{"query": "q", "positive": "p", "negative": ["n", "\\t"]}', "negatives is empty"),
        ('{"query": "q", "query": "r", "positive": "p"}', "twice"),
    ],
)
def test_the_first_bad_row_is_named(tmp_path, wrong, error):
    path = written(tmp_path / "pairs.jsonl", mixed_rows(50))
    with path.open("a") as file:
        file.write(wrong + "\nno JSON\n")
    with pytest.raises(ValueError, match=f"line 51.*{error}"):
        load(path, kind="pairs")
    assert len(load(path, kind="pairs", max_rows=50)) == 50


def test_rows_are_read_once(tmp_path, cache):
    path = written(tmp_path / "pairs.jsonl", mixed_rows(3000))
    first = load(path, kind="pairs")
    (folder,) = folders(cache)
    arrow = (folder / "rows.arrow").stat()
    assert first.data.nbytes > 0
    assert first.to_list() == load(path, kind="pairs").to_list()
    assert first.info.description == load(path, kind="pairs").info.description != ""
    assert (folder / "rows.arrow").stat().st_mtime_ns == arrow.st_mtime_ns
    copy = tmp_path / "elsewhere" / "pairs.jsonl"
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    shuffled = load(copy, kind="pairs", shuffle_seed=1, max_rows=100)
    assert folders(cache) == [folder]
    assert len(shuffled) == 100
    load(path, kind="pairs", where={"query": "q 5"})
    assert len(folders(cache)) == 2
    path.write_text(path.read_text().replace("q 1", "q one", 1))
    assert load(path, kind="pairs")[1]["query"] == "q one"
    assert len(folders(cache)) == 3


def test_a_file_that_changes_meanwhile_is_not_kept(tmp_path, cache, monkeypatch):
    path = written(tmp_path / "pairs.jsonl", mixed_rows(100))
    read = datasets.read

    def replaced(*args, **options):
        written(path, mixed_rows(50))  # after its hash was taken, and before it is read
        return read(*args, **options)

    monkeypatch.setattr(datasets, "read", replaced)
    with pytest.raises(ValueError, match="changed while it was read"):
        load(path, kind="pairs")
    assert not folders(cache)


def test_a_damaged_file_is_made_again(tmp_path, cache):
    path = written(tmp_path / "pairs.jsonl", mixed_rows(100))
    rows = listed(path)
    (folder,) = folders(cache)
    content = (folder / "rows.arrow").read_bytes()
    (folder / "rows.arrow").write_bytes(content.replace(b"q 42", b"q 24"))
    assert listed(path) == rows
    assert (folder / "rows.arrow").read_bytes() == content


def test_skipped_rows_are_reported_again(tmp_path, cache):
    path = written(tmp_path / "pairs.jsonl", mixed_rows(100))
    with path.open("a") as file:
        file.write('no JSON\n{"query": "", "positive": "p"}\n')
    reports = []
    for _ in range(2):
        with (tmp_path / "rejected.jsonl").open("w") as file:
            rejects = Rejects(file, max_rate=0.5)
            rows = listed(path, rejects=rejects)
        reports.append((rows, rejects.rows, rejects.count, (tmp_path / "rejected.jsonl").read_text()))
    assert reports[0] == reports[1]
    assert reports[0][1:3] == (102, 2)
    with pytest.raises(ValueError, match="line 101"):
        listed(path)
    with (tmp_path / "rejected.jsonl").open("w") as file, pytest.raises(ValueError, match="max_reject_rate=0.001"):
        listed(path, rejects=Rejects(file, max_rate=0.001))


def test_small_files_and_first_rows_are_not_kept(tmp_path, cache, monkeypatch):
    path = written(tmp_path / "pairs.jsonl", mixed_rows(100))
    load(path, kind="pairs", max_rows=10)
    monkeypatch.setattr(kept, "LARGE", 1 << 26)
    load(path, kind="pairs")
    monkeypatch.setattr(kept, "LARGE", 1)
    monkeypatch.setattr("os.access", lambda *_: False)
    load(path, kind="pairs")
    monkeypatch.undo()
    monkeypatch.setenv("EMBREW_CACHE", str(cache.parent))
    monkeypatch.setattr(kept, "LARGE", 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    load(path, kind="pairs")
    assert not folders(cache)


def _load_in_process(path: Path, cache: Path, done: multiprocessing.Queue) -> None:
    os.environ["EMBREW_CACHE"] = str(cache)
    kept.LARGE = 1
    done.put(sum(len(row["query"]) for row in load(path, kind="pairs")))


@pytest.mark.slow
def test_two_processes_and_a_killed_one(tmp_path):
    path = written(tmp_path / "pairs.jsonl", mixed_rows(20_000) * 5)
    spawn = multiprocessing.get_context("spawn")
    done = spawn.Queue()
    arguments = path, tmp_path / "cache", done
    killed = spawn.Process(target=_load_in_process, args=arguments)
    killed.start()
    while not list((tmp_path / "cache").glob("rows/.*/new/rows.arrow")):
        time.sleep(0.01)
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert not folders(tmp_path / "cache" / "rows")
    both = [spawn.Process(target=_load_in_process, args=arguments) for _ in range(2)]
    for process in both:
        process.start()
    sums = {done.get(timeout=120) for _ in both}
    for process in both:
        process.join()
    assert sums == {sum(len(row["query"]) for row in listed(path))}
    (folder,) = folders(tmp_path / "cache" / "rows")
    assert sorted(file.name for file in folder.iterdir()) == ["checksums.json", "report.json", "rows.arrow"]
