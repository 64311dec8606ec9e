"""An index of many documents beside faiss: `python benchmarks/search_index.py WORK [--only seconds|memory]`.

Random unit vectors of 384 dimensions, and texts of ten words. `save`, `load` and `updated` with `save` (one document in
a hundred is new, one is dropped) stand beside `faiss.write_index` and `faiss.read_index` of the same vectors; a search
of a batch for ten documents beside `IndexFlatIP.search`, which finds the same scores. Peak memory is that of a fresh
process that opens the index and searches it, without torch, which an encoder adds. WORK needs 7 kB per document, and is
left empty. `--only` measures one part again, and the other one is kept as it is in the result file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np

from embrew.data.beir import Document
from embrew.search import SearchIndex

COMMAND = "python benchmarks/search_index.py WORK"
DIMENSIONS, TOP_K, ROUNDS, CHANGED = 384, 10, 3, 100
BATCHES = (1, 64, 1000)  # queries that are searched at once; faiss multiplies matrices from 334 on
GOALS = {"load": 2.0, "search": 1.1, "peak GB": 2.0}
ALONE = """
import sys
import numpy as np
from embrew.search import SearchIndex

class Drawn:
    prompts = {}
    weights_hash = lambda self: "random unit vectors"
    def encode(self, texts, **_):
        return np.random.default_rng(0).standard_normal((len(texts), DIMENSIONS), dtype=np.float32)
    encode_query = encode_document = encode

index = SearchIndex.load(sys.argv[1], Drawn())
for count in (1, 64):
    index.search(["query"] * count, top_k=TOP_K)
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])  # ru_maxrss would be the parent's
"""


class Drawn:
    """An encoder whose vectors are drawn by the number at the end of a text."""

    prompts: dict[str, str] = {}  # noqa: RUF012

    def weights_hash(self) -> str:
        """Return a name."""
        return "random unit vectors"

    def encode(self, inputs: list[str], **_: Any) -> np.ndarray:
        """Return vectors, `(inputs, DIMENSIONS)`."""
        return np.stack([vectors(1, int(text.rsplit(" ", 1)[1]))[0] for text in inputs])

    encode_query = encode_document = encode


def vectors(count: int, seed: int) -> np.ndarray:
    """Return unit vectors, float32 `(count, DIMENSIONS)`."""
    draw = np.random.default_rng(seed)
    drawn = np.empty((count, DIMENSIONS), dtype=np.float32)
    for part in np.array_split(drawn, -(-count // 8192)):
        part[:] = draw.standard_normal(part.shape, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return drawn


def documents(first: int, last: int) -> list[Document]:
    """Return documents of ten words."""
    return [Document(str(i), f"the text of a document, which has ten words: {i}") for i in range(first, last)]


def seconds(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def timed(count: int, work: Path) -> dict[str, Any]:
    """Return the lines of an index of that many documents: CPU seconds."""
    import faiss

    given, flat = vectors(count, harness.SEED), faiss.IndexFlatIP(DIMENSIONS)
    flat.add(given)
    folder, file, encoder = work / "index", str(work / "index.faiss"), Drawn()
    index = SearchIndex.of_vectors(encoder, documents(0, count), given, copy=False)
    step = count // CHANGED
    newer = documents(step, count + step)
    sides: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "save": (lambda: index.save(folder, overwrite=True), lambda: faiss.write_index(flat, file)),
        "load": (lambda: SearchIndex.load(folder, encoder), lambda: faiss.read_index(file)),
        "load and verify": (lambda: SearchIndex.load(folder, encoder, verify="full"), lambda: faiss.read_index(file)),
    }
    lines = {name: compared(*pair) for name, pair in sides.items()}
    lines["update"] = {"ours": [], "faiss": []}
    for _ in range(ROUNDS):
        index.save(folder, overwrite=True)
        before = {one.name: one.stat().st_ino for one in folder.iterdir()}
        lines["update"]["ours"].append(seconds(lambda: update(folder, encoder, newer)))
        lines["update"]["written"] = sum(
            one.stat().st_size for one in folder.iterdir() if before.get(one.name) != one.stat().st_ino
        )
    index.save(folder, overwrite=True)
    opened = SearchIndex.load(folder, encoder)
    lines["first search, which verifies"] = {"ours": [seconds(partial(opened.search, ["query 1"]))], "faiss": []}
    for batch in BATCHES:
        unit = vectors(batch, harness.SEED + 1)
        both = opened._nearest(unit, TOP_K)[0], flat.search(unit, TOP_K)[0]
        assert np.allclose(*both, rtol=0, atol=1e-6), "both find the same scores"
        lines[f"search, {batch} at once"] = compared(
            lambda unit=unit: opened._nearest(unit, TOP_K), lambda unit=unit: flat.search(unit, TOP_K)
        )
    shutil.rmtree(folder)
    Path(file).unlink()
    return lines


def memory(count: int, work: Path) -> dict[str, Any]:
    """Return the line of an index of that many documents: the peak of a process."""
    SearchIndex.of_vectors(Drawn(), documents(0, count), vectors(count, harness.SEED), copy=False).save(work / "index")
    code = ALONE.replace("DIMENSIONS", str(DIMENSIONS)).replace("TOP_K", str(TOP_K))
    command = [sys.executable, "-c", code, str(work / "index")]
    peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(work / "index")
    return {"peak GB": {"ours": [1024 * int(peak) / 1e9], "faiss": [count * DIMENSIONS * 4 / 1e9]}}


def update(folder: Path, encoder: Drawn, newer: list[Document]) -> None:
    """Update an index in its folder."""
    index, changes = SearchIndex.load(folder, encoder).updated(newer)
    assert changes.encoded == changes.new == changes.dropped, "one in a hundred"
    index.save(folder, overwrite=True)


def compared(ours: Callable[[], Any], peer: Callable[[], Any]) -> dict[str, list[float]]:
    """Return the CPU seconds of both."""
    found = harness.interleaved({"ours": ours, "faiss": peer}, ROUNDS)
    return {name: list(taken) for name, taken in found.items()}


def state(name: str, found: dict[str, list[float]]) -> str:
    """Return whether a goal is met."""
    goal = next((name_of for name_of in GOALS if name == name_of or name.startswith(f"{name_of}, ")), None)
    if goal is None:
        return ""
    value = found["ours"][0] if goal == "peak GB" else harness.ratio(found["ours"], found["faiss"])["ratio"]
    return f"≤ {GOALS[goal]:g}: {'met' if value <= GOALS[goal] else 'missed'}"


def row(count: str, name: str, found: dict[str, Any]) -> list[str]:
    """Return a line of the table."""
    both = [f"{statistics.median(found[side]):.3f}" if found[side] else "" for side in ("ours", "faiss")]
    ratio = harness.ratio(found["ours"], found["faiss"]) if len(found["faiss"]) > 1 else None
    shown = f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""
    name += f" ({found['written'] / 1e6:.1f} MB written)" if "written" in found else ""
    return [f"{int(count):,}", name, *both, shown, state(name, found)]


def main() -> None:
    """Measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--only", choices=["seconds", "memory"])
    asked = parser.parse_args()
    harness.one_core()
    asked.work.mkdir(parents=True, exist_ok=True)
    file = harness.RESULTS / "search-index.json"
    record: dict[str, Any] = json.loads(file.read_text()) if asked.only else {}
    for part, measure in {"seconds": timed, "memory": memory}.items():
        if asked.only in (None, part):
            found = {str(count): measure(count, asked.work) for count in asked.documents}
            record[part] = {**harness.circumstances(COMMAND), "found": found}
    parts = [record[part] for part in ("seconds", "memory")]
    counts = parts[0]["found"]
    lines = [row(count, *one) for count in counts for part in parts for one in part["found"][count].items()]
    page = [
        "# search-index",
        "",
        f"CPU seconds on one core, median of {ROUNDS} rounds in turn; memory in GB. {DIMENSIONS} dimensions, float32.",
        "faiss: `write_index`, `read_index` and `IndexFlatIP.search`; beside the peak, the vectors alone.",
        "",
        *harness.table(["documents", "what", "embrew", "faiss", "ratio", "goal"], lines),
        "",
        *harness.origin(parts[0]),
        f"- memory: commit {parts[1]['commit']}, {parts[1]['date']}",
    ]
    harness.write("search-index", page, record)


if __name__ == "__main__":
    main()
