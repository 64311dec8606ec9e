"""Processes that share tasks and corpora give what one gives; a stopped run resumes in another number of them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

from embrew.cli.console import rank as rank_of_process
from embrew.evaluation import PARTS, Processes, Result, evaluate, find_task
from embrew.evaluation import processes as counters
from embrew.evaluation.kinds import retrieval
from tests.corpus.stub import Stub
from tests.rows import read_rows, write_beir, write_rows

WORDS = ["red", "blue", "green", "cat", "dog", "bird", "lake", "hill", "road", "sun", "moon", "rain"]


class Encoder(Stub):
    """The stub of corpora; it may stop at a text, or wait."""

    def __init__(self, stop_at: str | None = None, wait: float = 0.0) -> None:
        super().__init__(wait=wait)
        self.stop_at, self.documents = stop_at, 0

    def encode_document(self, inputs: Sequence[str], **options: Any) -> np.ndarray:
        if self.stop_at in inputs:
            raise KeyboardInterrupt
        self.documents += len(inputs)
        return super().encode_document(inputs, **options)


def write_corpus(folder: Path, documents: int, queries: int = 7) -> Path:
    texts = [" ".join(WORDS[(i * k) % 12] for k in (1, 5, 7)) + f" {i % 5}" for i in range(documents)]  # some are equal
    rows = [{"_id": f"d{(i * 7) % documents:03}", "title": "", "text": text} for i, text in enumerate(texts)]
    asked = [{"_id": f"q{i}", "text": f"{WORDS[i]} {WORDS[i + 3]}"} for i in range(queries)]
    qrels = [(f"q{i}", f"d{(i * 11 + k) % documents:03}", 1 + k % 2) for i in range(queries) for k in range(5)]
    return write_beir(folder, rows, asked, qrels)


@pytest.fixture
def folders(tmp_path, sts_folder, retrieval_folder, monkeypatch) -> list[Path]:
    """Two corpora of several chunks, one of a single chunk, and pairs."""
    monkeypatch.setattr(retrieval, "CHUNK", 10)
    monkeypatch.setattr(counters, "POLL", 0.01)
    large, small = write_corpus(tmp_path / "large", 93), write_corpus(tmp_path / "small", 31)
    return [sts_folder, small, large, retrieval_folder]


def in_threads(run: Callable[[int], None], count: int) -> None:
    """Call a function in one thread per rank, and wait for them."""
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def shared(encoders: Sequence[Encoder], folders: list[Path], output: Path, **settings: Any) -> list[list[Result]]:
    """Evaluate in one thread per encoder, as processes of one launch would."""
    store, found, errors = HashStore(), {}, []
    store.set_timeout(timedelta(seconds=60))

    def run(rank: int) -> None:
        processes = Processes(store, rank=rank, count=len(encoders))
        try:
            found[rank] = evaluate(encoders[rank], folders, output_dir=output, processes=processes, **settings)
        except BaseException as error:
            errors.append(error)

    in_threads(run, len(encoders))
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(len(encoders))]


def written(folder: Path) -> dict[str, Any]:
    """The files of results, without times."""
    found = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    for values in found.values():
        values.pop("evaluation_time", None)
        values.pop("sha256", None)
    return found


def plain(results: Sequence[Result]) -> list[dict[str, Any]]:
    return [{**json.loads(json.dumps(vars(result))), "seconds": 0, "run": None} for result in results]


@pytest.mark.parametrize("count", [2, 5])
def test_the_same_results_as_one_process(count, folders, tmp_path):
    one = evaluate(Encoder(), folders, output_dir=tmp_path / "one")
    encoders = [Encoder(wait=0.01) for _ in range(count)]
    for results in shared(encoders, folders, tmp_path / "several"):
        assert plain(results) == plain(one)
    assert written(tmp_path / "several") == written(tmp_path / "one")
    assert sum(encoder.documents for encoder in encoders) == 93 + 31 + 3, "each document is encoded once"
    assert sum(encoder.documents > 0 for encoder in encoders) >= 2


def test_one_launch_evaluates_several_models(folders, tmp_path):
    """Each evaluation has counters of its own."""
    store, found = HashStore(), {}

    def run(rank: int) -> None:
        processes = Processes(store, rank=rank, count=2)
        found[rank] = [
            evaluate(Encoder(), folders, output_dir=tmp_path / name, processes=processes) for name in ("one", "two")
        ]

    in_threads(run, 2)
    alone = plain(evaluate(Encoder(), folders, output_dir=tmp_path / "alone"))
    assert [plain(results) for rank in range(2) for results in found[rank]] == [alone] * 4


def test_two_evaluations_that_write_to_one_folder_are_an_error(folders, tmp_path):
    """A part that another one has put beside those of this one."""
    large = folders[2]

    class Meanwhile(Encoder):
        def encode_document(self, inputs: Sequence[str], **options: Any) -> np.ndarray:
            for part in (tmp_path / "out" / PARTS).rglob("*.npz"):
                shutil.copy(part, part.with_name(f"other-{part.name}"))
            return super().encode_document(inputs, **options)

    with pytest.raises(ValueError, match="another evaluation writes there too; give each its own output folder"):
        evaluate(Meanwhile(), [large], output_dir=tmp_path / "out")


def test_the_ranking_is_that_of_one_sort(folders, tmp_path, monkeypatch):
    """The oracle scores all documents at once and sorts them by score, then by id.

    Vectors are multiples of 2⁻¹⁰, so that products are exact in float32, and equal texts tie on every machine.
    """

    def coarse(vectors: np.ndarray, **_: Any) -> np.ndarray:
        return (np.round(vectors / np.linalg.norm(vectors, axis=1, keepdims=True) * 1024) / 1024).astype(np.float32)

    monkeypatch.setattr(retrieval, "unit_vectors", coarse)
    encoder = Encoder()
    read = read_rows(folders[2] / "corpus.jsonl")
    documents = sorted((row["_id"], row["text"]) for row in read)
    vectors = coarse(encoder.encode_document([text for _, text in documents])).astype(np.float64)
    results, *_ = shared([Encoder(wait=0.01) for _ in range(3)], folders, tmp_path / "several")
    tops = results[2].examples["top"]
    assert len(tops) == 7
    for number, found in enumerate(tops):
        (query,) = coarse(encoder.encode_query([f"{WORDS[number]} {WORDS[number + 3]}"])).astype(np.float64)
        scores = vectors @ query
        order = sorted(range(93), key=lambda i: (-scores[i], documents[i][0]))
        assert found == [documents[i][0] for i in order[:10]]
        assert len(set(scores[order[:10]])) < 10, "some tie"


@pytest.mark.parametrize("then", [1, 4])
def test_a_stopped_run_resumes_with_another_number_of_processes(then, folders, tmp_path):
    one = evaluate(Encoder(), folders, output_dir=tmp_path / "one")
    large = read_rows(folders[2] / "corpus.jsonl")
    stop_at = next(row["text"] for row in large if row["_id"] == "d059")
    first = Encoder(stop_at=stop_at)
    with pytest.raises(KeyboardInterrupt):
        evaluate(first, [folders[2]], output_dir=tmp_path / "out")
    assert first.documents == 50 and (tmp_path / "out" / ".parts").is_dir()
    encoders = [Encoder() for _ in range(then)]
    results = shared(encoders, folders, tmp_path / "out")[0]
    assert sum(encoder.documents for encoder in encoders) == 43 + 31 + 3
    assert plain(results) == plain(one) and written(tmp_path / "out") == written(tmp_path / "one")
    again = [Encoder() for _ in range(2)]
    assert plain(shared(again, folders, tmp_path / "out")[1]) == plain(one)
    assert all(encoder.documents == 0 for encoder in again), "finished tasks are not repeated"


def test_a_broken_file_of_a_stopped_run_is_ranked_again(folders, tmp_path, caplog):
    one = evaluate(Encoder(), [folders[2]])
    large = read_rows(folders[2] / "corpus.jsonl")
    with pytest.raises(KeyboardInterrupt):
        evaluate(
            Encoder(stop_at=next(row["text"] for row in large if row["_id"] == "d059")),
            [folders[2]],
            output_dir=tmp_path / "out",
        )
    (part,) = (tmp_path / "out" / ".parts").rglob("*.npz")
    part.write_bytes(part.read_bytes()[:-100])
    encoder = Encoder()
    assert plain(evaluate(encoder, [folders[2]], output_dir=tmp_path / "out")) == plain(one)
    assert encoder.documents == 93 and f"{part} cannot be used" in caplog.text


def test_overwrite_ranks_everything_again(folders, tmp_path):
    first = Encoder()
    evaluate(first, folders, output_dir=tmp_path / "out")
    encoders = [Encoder() for _ in range(2)]
    shared(encoders, folders, tmp_path / "out", overwrite=True)
    assert sum(encoder.documents for encoder in encoders) == first.documents == 127


def test_cells_of_a_grid_are_evaluated_by_one_process(tmp_path):
    folder = write_corpus(tmp_path / "asked", 12)
    rows = read_rows(folder / "queries.jsonl")
    write_rows(folder / "queries.jsonl", ({**row, "answers": ["red"]} for row in rows))
    encoders = [Encoder(wait=0.01) for _ in range(2)]
    grid = find_task(folder, kind="rag", dims=[2, 4, 8])
    first, second = shared(encoders, [grid], tmp_path / "out")
    assert len(first) == 3 and plain(first) == plain(second)
    assert sorted(encoder.documents for encoder in encoders) == [0, 12]


def test_several_processes_need_a_folder(folders):
    with pytest.raises(ValueError, match="2 processes share tasks through a folder; give --output DIR"):
        evaluate(Encoder(), folders, processes=Processes(HashStore(), count=2))


def test_one_process_is_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert (Processes.of_launch().count, rank_of_process()) == (1, 0)


def test_a_process_of_a_launch_uses_the_gpu_of_its_local_rank(monkeypatch):
    devices: list[int] = []
    for name, value in {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda url: iter([(HashStore(), 5, 8)]))
    processes = Processes.of_launch()
    assert (processes.rank, processes.count, devices) == (5, 8, [1])
    assert [processes.add("task 0"), processes.add("task 0"), processes.add("task 1")] == [0, 1, 0]
